"""Send what is left of linear layers in float32 to our kernel, which reads the weights as they lie in the file."""

from __future__ import annotations

import torch
from torch.export import ExportedProgram

import hybridge.runtime.kernels.linear  # noqa: F401  registers the operator

LINEAR = torch.ops.aten.linear.default


def own_linears(program: ExportedProgram) -> None:
    """Replace every linear layer of an exported graph by ``hybridge::linear``."""
    for node in program.graph.find_nodes(op="call_function", target=LINEAR):
        node.target = torch.ops.hybridge.linear.default
        node.args = (*node.args, None) if len(node.args) == 2 else node.args
    program.graph_module.recompile()
