"""Recognize parts of exported graphs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import Node
from torch.fx.node import map_arg

from hybridge.export.pinned.torch_export import Operator, declared, overload

aten = torch.ops.aten

AnyNode: TypeAlias = Any
"""A ``torch.fx.Node``, whose arguments PyTorch types so widely that nothing can be read of them."""

SLICE = (None, 0, None, None, 1)
"""The default arguments of a slice."""

WRITTEN = "written"
"""The mark of ``mark_written``."""


def all_nodes(program: ExportedProgram, target: Any = None) -> list[AnyNode]:
    """Return the nodes as they are now, or the calls of ``target`` among them."""
    return [node for node in program.graph.nodes if target is None or node.target == target]


def calls(node: Any, *targets: Any) -> bool:
    """Return whether ``node`` is a call of one of the operators."""
    return isinstance(node, Node) and node.op == "call_function" and node.target in targets


def shape(node: Any) -> tuple[int, ...]:
    """Return the shape of a node's tensor."""
    return tuple(node.meta["val"].shape)


def mark_written(program: ExportedProgram) -> None:
    """Note which tensors share memory with one that an operator writes to: to read them later may give something else."""
    written = {_base(argument) for node in all_nodes(program) for argument in _written_by(node)}
    for node in all_nodes(program):
        if _base(node) in written:
            node.meta[WRITTEN] = True


def _written_by(node: AnyNode) -> list[Any]:
    if not isinstance(node.target, Operator):
        return []
    arguments = declared(node.target).arguments
    return [given for given, each in zip(node.args, arguments, strict=False) if each.alias_info and each.alias_info.is_write]


def _base(node: Any) -> Any:
    """Return what ``node`` is a view of, through all views between."""
    while isinstance(node, Node) and is_view(node):
        node = node.args[0]
    return node


def is_view(node: AnyNode) -> bool:
    """Return whether ``node`` shares memory with its first argument, or a list that it takes from does."""
    if getattr(node.target, "__name__", "") == "getitem":
        return is_view(node.args[0])
    if not isinstance(node.target, Operator):
        return False
    return any(each.alias_info is not None for each in declared(node.target).returns)


def is_unwritten(*nodes: AnyNode) -> bool:
    """Return whether nothing writes to the memory of any of them."""
    return not any(WRITTEN in node.meta for node in nodes)


def is_float(*nodes: Any) -> bool:
    """Return whether all are nodes of float32 tensors with fixed shapes, which nothing writes to."""
    values = [node.meta.get("val") if isinstance(node, Node) and is_unwritten(node) else None for node in nodes]
    return all(
        isinstance(value, Tensor) and value.dtype == torch.float32 and all(isinstance(size, int) for size in value.shape)
        for value in values
    )


def either_way(node: Any, target: Any) -> Iterator[tuple[AnyNode, AnyNode]]:
    """Return both orders of the two tensors that a commutative operator is called with; nothing for other nodes."""
    if calls(node, target) and len(node.args) == 2 and not node.kwargs and all(isinstance(each, Node) for each in node.args):
        a, b = node.args
        yield a, b
        yield b, a


def only_user(node: AnyNode) -> AnyNode:
    """Return the one node that uses ``node``; None if there are none or several."""
    return next(iter(node.users)) if len(node.users) == 1 else None


def over_last(node: Any, target: Any) -> AnyNode:
    """Return what ``node`` reduces over the last dimension that is kept, by ``target``; None for any other node."""
    if not calls(node, target) or node.kwargs.get("dtype") or len(node.args) != 3 or not node.args[2]:
        return None
    source, dims, _ = node.args
    last = len(shape(source)) - 1
    return source if [d % (last + 1) for d in dims] == [last] else None


def part_of_last(node: Any) -> tuple[AnyNode, int, int, int] | None:
    """Return (source, start, stop, step) if ``node`` is a part of source's last dimension, by a slice, a chunk or a split."""
    if calls(node, aten.slice.Tensor):
        arguments: Any = (*node.args, *SLICE[len(node.args) :])
        source, dim, start, stop, step = arguments
        if dim % len(shape(source)) != len(shape(source)) - 1:
            return None
        begin, end, _ = slice(start, stop, step).indices(shape(source)[-1])
        return source, begin, end, step
    return _piece(node)


def _piece(node: AnyNode) -> tuple[AnyNode, int, int, int] | None:
    is_taken = isinstance(node, Node) and getattr(node.target, "__name__", "") == "getitem"
    parts: AnyNode = node.args[0] if is_taken else None
    if not calls(parts, aten.chunk.default, aten.split.Tensor, aten.split_with_sizes.default):
        return None
    source, dim = parts.args[0], (*parts.args, 0)[2]
    if dim % len(shape(source)) != len(shape(source)) - 1:
        return None
    sizes = [each.shape[-1] for each in parts.meta["val"]]
    start = sum(sizes[: node.args[1]])
    return source, start, start + sizes[node.args[1]], 1


def insert(
    program: ExportedProgram, before: AnyNode, target: Any, args: tuple[Any, ...], like: AnyNode | None = None
) -> AnyNode:
    """Insert a call of ``target`` in front of ``before``; its value is computed, or taken from the node that it is like."""
    with program.graph.inserting_before(before):
        made: AnyNode = program.graph.call_function(target, args)
    if like is not None:
        made.meta["val"] = like.meta["val"]
    else:
        made.meta["val"] = target(*map_arg(args, lambda each: each.meta["val"]))
    return made


def replace(program: ExportedProgram, root: AnyNode, target: Any, args: tuple[Any, ...]) -> AnyNode:
    """Put a call of ``target`` in the place of ``root``; what only fed the old one is removed with the dead code."""
    made = insert(program, root, target, args, like=root)
    root.replace_all_uses_with(made)
    program.graph.erase_node(root)
    return made


# Make a graph functional: in-place writes become new tensors, and what is computed twice is computed once.


def make_new_tensors(program: ExportedProgram) -> None:
    """Turn ``x.mul_(y)`` into ``x = x * y`` where x is no view and has none: what only computes can be recognized."""
    for node in all_nodes(program):
        if (target := _pure(node)) is not None and _is_alone(node.args[0], node):
            node.target = target
            later = set(_behind(node))
            node.args[0].replace_all_uses_with(node, delete_user_cb=lambda user, later=later: user in later)


def _pure(node: AnyNode) -> Any:
    """Return the operator that computes what ``node`` writes in place; None if it does not write or there is no such one."""
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
