"""Multipliers: configs that have one for everything mostly set it to 1."""

from __future__ import annotations

from torch.export import ExportedProgram

from hybridge.export.fusion.match import all_nodes, aten, calls, is_float


def drop_idle_scalings(program: ExportedProgram) -> None:
    """Take out products with and quotients by the number 1."""
    for node in all_nodes(program):
        idle = calls(node, aten.mul.Tensor, aten.div.Tensor) and node.args[1] == 1.0 and is_float(node.args[0], node)
        if idle and node.args[0].op != "placeholder":  # a method must not give out what it is given
            node.replace_all_uses_with(node.args[0])
            program.graph.erase_node(node)
