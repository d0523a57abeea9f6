"""Operators of the runtime that ours are many times faster than, with the same arguments and results."""

from __future__ import annotations

from torch.fx import GraphModule
from torch.fx.passes.infra.pass_base import PassResult

import hybridge.runtime.kernels.permute
import hybridge.runtime.kernels.where  # noqa: F401  both register operators
from hybridge.export.lowering.fusion.match import AnyNode
from hybridge.export.pinned.executorch import edge

aten, own = edge.aten, edge.hybridge

FASTER = {aten.permute_copy.default: own.permute.default, aten.where.self: own.where.default}


def use_own_operators(graph_module: GraphModule) -> PassResult:
    """Call ours wherever nothing is converted on the way. A pass over an edge program."""
    node: AnyNode
    for node in graph_module.graph.nodes:
        if node.target in FASTER and _keeps_type(node):
            node.target = FASTER[node.target]
    graph_module.recompile()
    return PassResult(graph_module, True)


def _keeps_type(node: AnyNode) -> bool:
    """Return whether what the output is made of has its type: the condition of a choice may have another one."""
    operands = node.args[1:] if node.target == aten.where.self else node.args[:1]
    return all(each.meta["val"].dtype == node.meta["val"].dtype for each in operands)
