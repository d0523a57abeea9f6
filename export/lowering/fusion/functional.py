"""Make a graph functional: in-place writes become new tensors, and what is computed twice is computed once."""

from __future__ import annotations

from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from hybridge.export.lowering.fusion.match import AnyNode, all_nodes, is_unwritten, is_view
from hybridge.export.pinned.torch_export import Operator, declared, overload


def make_new_tensors(program: ExportedProgram) -> None:
    """Turn ``x.mul_(y)`` into ``x = x * y`` where x is no view and has none: what only computes can be recognized."""
    for node in all_nodes(program):
        if (target := _pure(node)) is not None and _is_alone(node.args[0], node):
            node.target = target
            later = set(_behind(node))
            node.args[0].replace_all_uses_with(node, delete_user_cb=lambda user, later=later: user in later)


def _pure(node: AnyNode) -> Any:
    """The operator that gives what the writing one of ``node`` leaves behind; None for all others."""
    if not isinstance(node.target, Operator) or node.target.namespace != "aten":
        return None
    name, form = declared(node.target).name.removeprefix("aten::"), overload(node.target)
    if not name.endswith("_") or name == "copy_" or name.startswith("_"):
        return None
    return getattr(getattr(torch.ops.aten, name[:-1], None), form, None)


def _is_alone(written: Any, writer: AnyNode) -> bool:
    """Return whether no other node shares the memory of ``written``."""
    if not isinstance(written, Node) or written.op == "placeholder" or is_view(written):
        return False
    return not any(is_view(user) for user in written.users if user is not writer)


def _behind(node: AnyNode) -> list[AnyNode]:
    found, each = [], node.next
    while each.op != "root":
        found.append(each)
        each = each.next
    return found


def share_equal_nodes(program: ExportedProgram) -> None:
    """Drop calls that an earlier one is equal to, of operators that only compute and tensors that nothing writes to."""
    seen: dict[Any, Node] = {}
    for node in all_nodes(program):
        if (key := _key(node)) is not None and (first := seen.setdefault(key, node)) is not node:
            node.replace_all_uses_with(first)
            program.graph.erase_node(node)


def _key(node: AnyNode) -> Any:
    """Return a key equal for calls that give the same; None if it cannot be known."""
    if not isinstance(node.target, Operator) or declared(node.target).is_mutable or not declared(node.target).returns:
        return None
    if torch.Tag.nondeterministic_seeded in node.target.tags or not is_unwritten(node, *node.all_input_nodes):
        return None
    return repr((node.target, node.args, sorted(node.kwargs.items())))
