"""Take out of exported graphs what computes nothing, and write out what a backend gets wrong."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from hybridge.export.pinned.torch_export import ASSERTIONS

aten = torch.ops.aten

CASTS = frozenset({aten.to.dtype, aten.to.dtype_layout, aten.to.device, aten.to.other, aten.type_as.default})
IDENTITIES = frozenset({aten.detach.default, aten.detach_.default, aten.alias.default, aten.lift_fresh.default})


def drop_idle_nodes(program: ExportedProgram) -> None:
    """Drop casts to the type that a tensor has, detachments, dropouts that are off, and whatever nobody uses.

    Assertions about shapes and dtypes go first: what only they use would keep its weights in the file a second time.
    """
    for node in list(program.graph.nodes):
        if node.target in ASSERTIONS:
            program.graph.erase_node(node)
        elif _is_idle(node):
            node.replace_all_uses_with(node.args[0])
            program.graph.erase_node(node)
    program.graph.eliminate_dead_code()
    program.graph_module.recompile()


def _is_idle(node: Node) -> bool:
    if node.op != "call_function" or not node.args or not isinstance(node.args[0], Node):
        return False
    before, after = node.args[0].meta.get("val"), node.meta.get("val")
    if not isinstance(before, torch.Tensor) or not isinstance(after, torch.Tensor):
        return False
    if node.target == aten.contiguous.default:
        return bool(before.is_contiguous())
    if node.target == aten.dropout.default:
        return not node.args[2]
    copies = True in node.args[2:] or bool(node.kwargs.get("copy"))
    return node.target in IDENTITIES or (node.target in CASTS and before.dtype == after.dtype and not copies)


def write_out_tanh_gelu(program: ExportedProgram) -> None:
    """Make ``gelu(x, approximate="tanh")`` of products and a tanh: XNNPACK computes the exact gelu for it.

    The difference is up to 5e-4 at every activation of a Gemma model, and nobody says so.
    """
    for node in list(program.graph.nodes):
        if node.target == aten.gelu.default and node.kwargs.get("approximate", "none") == "tanh":
            with program.graph.inserting_before(node):
                node.replace_all_uses_with(_tanh_gelu(program, node, node.args[0]))
            program.graph.erase_node(node)
    program.graph_module.recompile()


def _tanh_gelu(program: ExportedProgram, node: Node, x: Any) -> Node:
    """``x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))``. Source: Hendrycks and Gimpel (arXiv:1606.08415)."""

    def call(target: Any, *args: Any) -> Node:
        made: Node = program.graph.call_function(target, args)
        made.meta["val"] = node.meta["val"]
        return made

    scale = math.sqrt(2.0 / math.pi)
    slope = call(aten.add.Tensor, call(aten.mul.Tensor, call(aten.mul.Tensor, x, x), 0.044715 * scale), scale)
    bent = call(aten.tanh.default, call(aten.mul.Tensor, x, slope))
    return call(aten.mul.Tensor, call(aten.mul.Tensor, x, 0.5), call(aten.add.Tensor, bent, 1.0))
