"""Rotary embedding: ``x * cos + rotate(x) * sin``, with what it leaves alone, becomes ``hybridge::rotary``."""

from __future__ import annotations

from typing import Any

import torch
from torch.export import ExportedProgram

import hybridge.export.operators.elementwise  # noqa: F401  registers the operators
from hybridge.export.lowering.fusion.match import (
    AnyNode,
    all_nodes,
    aten,
    calls,
    either_way,
    insert,
    is_float,
    only_user,
    part_of_last,
    shape,
)

HALVES, NEIGHBOURS = False, True


def fuse_rotary(program: ExportedProgram) -> None:
    """Fuse every such sum over four dimensions, of which heads are the second (the usual) or the third."""
    for node in all_nodes(program):
        if calls(node, aten.add.Tensor) and (found := _rotated(node)) is not None:
            x, cos, sin, pairs = found
            heads = _heads_axis(shape(x), shape(cos), shape(sin))
            if heads is not None:
                _replace(program, node, x, cos, sin, pairs, heads)
    program.graph.eliminate_dead_code()


def _rotated(node: AnyNode) -> tuple[AnyNode, AnyNode, AnyNode, bool] | None:
    """x, cos, sin and how the pairs lie, where ``node`` is ``x * cos + rotate(x) * sin``."""
    for first, second in either_way(node, aten.add.Tensor):
        for x, cos in either_way(first, aten.mul.Tensor):
            for turned, sin in either_way(second, aten.mul.Tensor):
                if (pairs := _pairs(turned, x)) is not None and is_float(x, cos, sin):
                    return x, cos, sin, pairs
    return None


def _pairs(turned: AnyNode, x: AnyNode) -> bool | None:
    """Return how the pairs (a, b) of x lie that ``turned`` has as (-b, a); None if it has not."""
    if calls(turned, aten.cat.default):
        parts, size = turned.args[0], shape(x)[-1]
        halves = (
            len(parts) == 2
            and _is_negative(parts[0], (x, size // 2, size, 1))
            and part_of_last(parts[1]) == (x, 0, size // 2, 1)
        )
        return HALVES if halves and (*turned.args, 0)[1] in (-1, 3) else None
    if calls(turned, aten.flatten.using_ints, aten.view.default, aten.reshape.default):
        stacked, size = turned.args[0], shape(x)[-1]
        if calls(stacked, aten.stack.default) and stacked.args[1] in (-1, 4) and shape(turned) == shape(x):
            parts = stacked.args[0]
            between = _is_negative(parts[0], (x, 1, size, 2)) and part_of_last(parts[1]) == (x, 0, size, 2)
            return NEIGHBOURS if between else None
    return None


def _is_negative(node: Any, part: tuple[AnyNode, int, int, int]) -> bool:
    return calls(node, aten.neg.default) and part_of_last(node.args[0]) == part


def _heads_axis(x: tuple[int, ...], cos: tuple[int, ...], sin: tuple[int, ...]) -> int | None:
    """The axis of x that all angles are the same for, of four; None where the angles have another form."""
    if len(x) != 4 or len(cos) != 4 or cos != sin or cos[0] not in (1, x[0]) or cos[3] != x[3]:
        return None
    return next((axis for axis in (1, 2) if cos[axis] == 1 and cos[3 - axis] == x[3 - axis]), None)


def _replace(program: ExportedProgram, root: AnyNode, x: AnyNode, cos: AnyNode, sin: AnyNode, pairs: bool, heads: int) -> None:
    whole = _with_rest(root, x)
    if whole is not None:
        root, x = whole
    if heads == 1:
        x = insert(program, root, aten.transpose.int, (x, 1, 2))
    made = insert(program, root, torch.ops.hybridge.rotary.default, (x, cos, sin, pairs))
    if heads == 1:
        made = insert(program, root, aten.transpose.int, (made, 1, 2))
    root.replace_all_uses_with(made)
    program.graph.erase_node(root)


def _with_rest(rotated: AnyNode, x: AnyNode) -> tuple[AnyNode, AnyNode] | None:
    """The sum with the rest of the head that it is joined with, and the whole head, where x is the first part of one."""
    joined, part = only_user(rotated), part_of_last(x)
    if part is None or not calls(joined, aten.cat.default):
        return None
    assert joined is not None
    head, start, stop, step = part
    parts = joined.args[0]
    rest = (head, stop, shape(head)[-1], 1)
    fits = len(parts) == 2 and parts[0] is rotated and part_of_last(parts[1]) == rest and (*joined.args, 0)[1] in (-1, 3)
    return (joined, head) if fits and (start, step) == (0, 1) else None
