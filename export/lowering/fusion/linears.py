"""Linear layers and the multipliers around them: configs that have one for everything mostly set it to 1."""

from __future__ import annotations

import torch
from torch.export import ExportedProgram

import hybridge.export.operators.linear  # noqa: F401  registers the operators
from hybridge.export.lowering.fusion.match import AnyNode, all_nodes, aten, calls, insert, is_float, only_user, shape

BIAS = {
    aten.linear.default: 2,
    torch.ops.hybridge.packed_linear.default: 3,
    torch.ops.hybridge.block_linear.default: 6,
}
"""Linear layers, and which argument is the bias."""


def drop_idle_scalings(program: ExportedProgram) -> None:
    """Take out products with and quotients by the number 1."""
    for node in all_nodes(program):
        idle = calls(node, aten.mul.Tensor, aten.div.Tensor) and node.args[1] == 1.0 and is_float(node.args[0], node)
        if idle and node.args[0].op != "placeholder":  # a method must not give out what it is given
            node.replace_all_uses_with(node.args[0])
            program.graph.erase_node(node)


def scale_before_widening(program: ExportedProgram) -> None:
    """Scale what goes into a layer rather than what comes out, where that is more: the logits of a whole vocabulary."""
    for node in all_nodes(program):
        scales = calls(node, aten.mul.Tensor, aten.div.Tensor) and isinstance(node.args[1], float)
        linear: AnyNode = node.args[0] if scales else None
        if calls(linear, *BIAS) and only_user(linear) is node and _widens(linear):
            x = insert(program, linear, node.target, (linear.args[0], node.args[1]))
            linear.args = (x, *linear.args[1:])
            node.replace_all_uses_with(linear)
            program.graph.erase_node(node)


def _widens(linear: AnyNode) -> bool:
    """Return whether it has more outputs than inputs, and no bias that would have to be scaled as well."""
    has_bias = linear.args[BIAS[linear.target]] if len(linear.args) > BIAS[linear.target] else linear.kwargs.get("bias")
    return has_bias is None and is_float(linear.args[0]) and shape(linear)[-1] > shape(linear.args[0])[-1]


def own_linears(program: ExportedProgram) -> None:
    """Replace every linear layer of an exported graph by ``hybridge::linear``."""
    for node in program.graph.find_nodes(op="call_function", target=aten.linear.default):
        node.target = torch.ops.hybridge.linear.default
        node.args = (*node.args, None) if len(node.args) == 2 else node.args
    program.graph_module.recompile()
