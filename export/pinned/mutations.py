"""torch 2.13: put calls that write to their arguments back into a functional graph, without tracing each of them anew."""

from __future__ import annotations

from collections.abc import Mapping
from operator import getitem
from typing import Any, TypeAlias

from torch._higher_order_ops.auto_functionalize import auto_functionalized, auto_functionalized_v2
from torch.fx import Graph

from hybridge.export.pinned.torch_export import declared

FunctionalCall: TypeAlias = Any
"""A ``torch.fx.Node`` that calls an operator with copies of what it writes to, and returns its result and these copies."""


def put_back(graph: Graph) -> None:
    """Replace each functional form of a call by the call itself, which writes to its arguments.

    Stands in for ``decompose_auto_functionalized`` of ``torch._inductor``, which is called if any is of another form than
    hybridge's operators have: they write to whole tensors, and return one.
    """
    calls: list[FunctionalCall] = graph.find_nodes(op="call_function", target=auto_functionalized_v2)
    if any(_arguments(each) is None for each in calls) or graph.find_nodes(op="call_function", target=auto_functionalized):
        from torch._inductor.fx_passes.post_grad import decompose_auto_functionalized

        decompose_auto_functionalized(graph)
        return
    for node in calls:
        given = _arguments(node)  # anew, because results of other calls have been replaced
        assert given is not None
        names = [each.name for each in declared(node.args[0]).arguments]
        with graph.inserting_before(node):
            call = graph.call_function(node.args[0], tuple(given[name] for name in names))
        call.meta["val"] = node.meta["val"][0]
        for user in list(node.users):
            user.replace_all_uses_with((call, *node.kwargs["_all_bases"])[user.args[1]])
            graph.erase_node(user)
        graph.erase_node(node)


def _arguments(node: FunctionalCall) -> Mapping[str, Any] | None:
    """Return the arguments of the call by name; None if it is of another form."""
    schema, given = declared(node.args[0]), dict(node.kwargs)
    bases = given.pop("_all_bases")
    for each in schema.arguments:
        if each.alias_info is not None and each.alias_info.is_write and (key := f"_{each.name}_base_index") in given:
            index = given.pop(key)
            given[each.name] = None if index is None else bases[index]
    whole = given.keys() == {each.name for each in schema.arguments} and len(schema.returns) == 1
    plain = not any(each.kwarg_only for each in schema.arguments) and node.meta.get("only_clone_these_tensors") == []
    return given if whole and plain and all(user.target is getitem for user in node.users) else None
