"""Activations, and what they are multiplied with: ``silu(gate) * up`` becomes one ``hybridge::gated``."""

from __future__ import annotations

from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

import hybridge.export.operators.elementwise  # noqa: F401  registers the operators
from hybridge.export.lowering.fusion.match import all_nodes, aten, calls, either_way, is_float, replace, shape

ops = torch.ops.hybridge

NAMES = {
    aten.silu.default: "silu",
    aten.silu_.default: "silu",
    aten.sigmoid.default: "sigmoid",
    aten.gelu.default: "gelu",
    aten.relu.default: "relu",
    aten.tanh.default: "tanh",
    aten.softplus.default: "softplus",
}


def fuse_gates(program: ExportedProgram) -> None:
    """Fuse products with an activation that nothing else uses, then whatever activations are left."""
    for node in all_nodes(program):
        for value, gate in either_way(node, aten.mul.Tensor):
            name = activation_of(gate)
            if name and len(gate.users) == 1 and is_float(value) and shape(value) == shape(gate):
                replace(program, node, ops.gated.default, (value, gate.args[0], name))
                break
    program.graph.eliminate_dead_code()
    for node in all_nodes(program):
        if name := activation_of(node):
            replace(program, node, ops.activation.default, (node.args[0], name))


def activation_of(node: Any) -> str | None:
    """Return the name of the activation that ``node`` is, in float32 and as transformers' configs have it."""
    if not isinstance(node, Node) or node.target not in NAMES or not is_float(node, node.args[0]):
        return None
    name, options = NAMES[node.target], [*node.args[1:], *node.kwargs.values()]
    if calls(node, aten.gelu.default):
        return "gelu_tanh" if options == ["tanh"] else "gelu"
    # A softplus may have a slope and a threshold of its own.
    return None if options and name == "softplus" else name
