"""Transposes that meet their own inverse, with row-wise work between or without, move no data."""

from __future__ import annotations

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from hybridge.export.lowering.fusion.match import AnyNode, all_nodes, aten, calls, insert, replace, shape

ops = torch.ops.hybridge

ROW_WISE = (ops.rms_norm.default, ops.layer_norm.default)
"""Operators whose first argument is rows, each of which is worked on by itself."""

BY_NUMBER = (ops.activation.default, aten.mul.Tensor)


def cancel_transposes(program: ExportedProgram) -> None:
    """Move transposes behind what works on rows or numbers, then remove those that undo each other."""
    for node in all_nodes(program):
        if (axes := _moved(node)) is not None:
            source = node.args[0].args[0]
            before = insert(program, node, node.target, (source, *node.args[1:]))
            replace(program, node, aten.transpose.int, (before, *axes))
    for node in all_nodes(program):
        if calls(node, aten.transpose.int) and calls(node.args[0], aten.transpose.int) and _axes(node) == _axes(node.args[0]):
            node.replace_all_uses_with(node.args[0].args[0])
    program.graph.eliminate_dead_code()


def _axes(node: AnyNode) -> tuple[int, int]:
    dims = len(shape(node))
    first, second = sorted(axis % dims for axis in node.args[1:3])
    return first, second


def _moved(node: AnyNode) -> tuple[int, int] | None:
    """The axes of the transpose in front of ``node`` that may as well come behind it."""
    if not calls(node, *ROW_WISE, *BY_NUMBER) or not calls(node.args[0], aten.transpose.int):
        return None
    axes, last = _axes(node.args[0]), len(shape(node)) - 1
    if calls(node, *ROW_WISE):
        weight = node.args[1]
        by_row = last not in axes and (weight is None or weight.meta["val"].numel() == shape(node)[-1])
        return axes if by_row else None
    return axes if not isinstance(node.args[1], Node) else None
