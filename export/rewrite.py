"""Rewrites of exported graphs that change nothing but how well they lower."""

from __future__ import annotations

import torch
from executorch.backends.transforms.utils import create_constant_placeholder
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import Graph, Node

PROVENANCE = ("from_node", "stack_trace", "nn_module_stack", "source_fn_stack", "torch_fn")

aten = torch.ops.aten


def forget_provenance(program: ExportedProgram) -> None:
    """Drop where each node came from: every pass of the lowering deep-copies it, a fifth of the whole time."""
    for node in program.graph.nodes:
        for key in PROVENANCE:
            node.meta.pop(key, None)


def reductions_as_products(program: ExportedProgram) -> None:
    """Write a sum or mean over the last dimension as a product with a constant row [1, D].

    XNNPACK takes a linear layer but not such a reduction, which would cut every norm in two: fewer, larger islands lower
    several times faster, and run faster.
    """
    graph: Graph = program.graph
    rows: dict[tuple[int, float], Node] = {}
    for node in list(graph.nodes):
        if (scale := _scale_of_last_dim_reduction(node)) is None:
            continue
        size = node.args[0].meta["val"].shape[-1]
        row = rows.get((size, scale)) or _constant_row(program, size, scale)
        rows[size, scale] = row
        with graph.inserting_before(node):
            product = graph.call_function(aten.linear.default, (node.args[0], row))
        product.meta["val"] = node.meta["val"]
        node.replace_all_uses_with(product)
        graph.erase_node(node)
    program.graph_module.recompile()


def _scale_of_last_dim_reduction(node: Node) -> float | None:
    """1 for a sum, 1/D for a mean, of float32 over the last dimension that is kept; None for any other node."""
    if node.target not in (aten.mean.dim, aten.sum.dim_IntList) or node.kwargs.get("dtype") or len(node.args) > 3:
        return None
    source, dims, keep = (*node.args, False)[:3]
    assert isinstance(source, Node)
    assert isinstance(dims, list | tuple)
    value = source.meta["val"]
    if value.dtype != torch.float32 or not keep or [d % value.dim() for d in dims if isinstance(d, int)] != [value.dim() - 1]:
        return None
    return 1.0 if node.target == aten.sum.dim_IntList else 1.0 / value.shape[-1]


def _constant_row(program: ExportedProgram, size: int, scale: float) -> Node:
    graph = program.graph
    with graph.inserting_before(next(iter(graph.nodes))):
        name = f"row_{size}_" + ("mean" if scale != 1.0 else "sum")
        row: Node = create_constant_placeholder(
            program, graph, name, InputKind.BUFFER, torch.full((1, size), scale), persistent_buffer=True
        )
        return row
