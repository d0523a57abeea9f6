"""Turn copies in edge programs that move nothing into views, and operators into ours that are faster or round in one way."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.passes.infra.pass_base import PassResult

import hybridge.export.operators.attention
import hybridge.export.operators.linear  # noqa: F401  registers the operators
from hybridge.export.lower.fusion.match import AnyNode
from hybridge.export.pinned.executorch import CLONE, edge

aten, own = edge.aten, edge.hybridge

RESHAPING = frozenset(
    {
        aten.clone.default,
        aten.expand_copy.default,
        aten.permute_copy.default,
        aten.select_copy.int,
        aten.slice_copy.Tensor,
        aten.squeeze_copy.dim,
        aten.squeeze_copy.dims,
        aten.unsqueeze_copy.default,
        CLONE,
    }
)
"""Operators whose output has the numbers of the input, in their order or in another."""


def copies_to_views(graph_module: GraphModule) -> PassResult:
    """Make ``view_copy`` of them, the one copy that the memory planning leaves out. A pass over an edge program."""
    node: AnyNode
    for node in graph_module.graph.nodes:
        if node.target in RESHAPING and _keeps_order(node):
            node.target, node.args, node.kwargs = aten.view_copy.default, (node.args[0], list(node.meta["val"].shape)), {}
    graph_module.recompile()
    return PassResult(graph_module, True)


def _keeps_order(node: AnyNode) -> bool:
    source = node.args[0]
    # A view of state would show what is written to it later.
    if not isinstance(source, Node) or _base(source).op == "placeholder":
        return False
    before, after = source.meta["val"], node.meta["val"]
    if not (isinstance(before, Tensor) and isinstance(after, Tensor)) or before.dtype != after.dtype:
        return False
    if not all(isinstance(size, int) for size in (*before.shape, *after.shape)) or before.numel() != after.numel():
        return False
    return node.target != aten.permute_copy.default or _moves_nothing(before, node.args[1])


def _base(node: AnyNode) -> AnyNode:
    while node.target == aten.view_copy.default:
        node = node.args[0]
    return node


def _moves_nothing(x: Tensor, dims: object) -> bool:
    """Return whether only dimensions of size 1 change places."""
    assert isinstance(dims, list | tuple)
    kept = [dim % x.dim() for dim in dims if x.shape[dim] != 1]
    return kept == sorted(kept) or x.numel() == 0


PRODUCTS = {aten.bmm.default: own.matmul.default, aten.mm.default: own.matmul.default}
"""ExecuTorch's sum in an order that depends on the number of tokens."""
OWN = {aten.permute_copy.default: own.permute.default, aten.where.self: own.where.default, **PRODUCTS}


def use_own_operators(graph_module: GraphModule) -> PassResult:
    """Call ours wherever nothing is converted on the way. A pass over an edge program."""
    node: AnyNode
    for node in graph_module.graph.nodes:
        if node.target in OWN and _keeps_type(node):
            node.target = OWN[node.target]
    graph_module.recompile()
    return PassResult(graph_module, True)


def _keeps_type(node: AnyNode) -> bool:
    """Return whether what the output is made of has its type: the condition of a choice may have another one."""
    if node.target in PRODUCTS and node.meta["val"].dtype != torch.float32:
        return False
    operands = node.args[1:] if node.target == aten.where.self else node.args[:1]
    return all(each.meta["val"].dtype == node.meta["val"].dtype for each in operands)


def multiply_by_reciprocals(graph_module: GraphModule) -> PassResult:
    """Replace ``x / y`` by ``x * (1 / y)`` where y is repeated. A pass over an edge program.

    ExecuTorch does so by itself where y is one number and x several, and divides otherwise: what several tokens give, and one,
    would differ in the last bits, such as the weights of a token's experts, or a factor by position.
    """
    graph = graph_module.graph
    node: AnyNode
    for node in graph.find_nodes(op="call_function", target=aten.div.Tensor):
        x, y = (each.meta["val"] if isinstance(each, Node) else None for each in node.args)
        if x is None or y is None or y.shape == x.shape or y.dtype != torch.float32:
            continue
        with graph.inserting_before(node):
            reciprocal: AnyNode = graph.call_function(aten.reciprocal.default, (node.args[1],))
        reciprocal.meta["val"] = y
        node.target, node.args = aten.mul.Tensor, (node.args[0], reciprocal)
    graph_module.recompile()
    return PassResult(graph_module, True)
