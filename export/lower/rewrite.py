"""Rewrite exported graphs so that they lower better and compute the same."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from hybridge.export.lower.sources import call, computed_source
from hybridge.export.pinned.executorch import constant_input, with_source
from hybridge.export.pinned.torch_export import ASSERTIONS, PROVENANCE, Operator, declared

LARGEST_FOLDED = 1 << 16
"""Elements of a folded constant; larger ones are weights, which are stored once as they are."""

aten = torch.ops.aten


def forget_provenance(program: ExportedProgram) -> None:
    """Drop where each node came from: every pass of the lowering deep-copies it, a fifth of the whole time."""
    for node in program.graph.nodes:
        for key in PROVENANCE:
            node.meta.pop(key, None)


def fold_constants(program: ExportedProgram) -> None:
    """Compute once what depends on weights and shapes only: masks, index ranges, ``1 + weight``, ``-exp(A_log)``.

    Buffers are state and never constants here, even in a method that only reads them.
    """
    values = _constant_values(program)
    used = [node for node in values if node.op != "placeholder" and any(user not in values for user in node.users)]
    constants = {node: with_source(values[node].contiguous().clone(), computed_source(program, node)) for node in used}
    for node, constant in constants.items():
        node.replace_all_uses_with(constant_input(program, f"folded_{node.name}", constant))
    for node in reversed(values):
        if node.op != "placeholder" and not node.users:
            program.graph.erase_node(node)
    program.graph_module.recompile()


def _constant_values(program: ExportedProgram) -> dict[Node, torch.Tensor]:
    """Return the value of each parameter, and of each small tensor computed from constants alone."""
    parameters = program.graph_signature.inputs_to_parameters
    written = _written_in_place(program.graph)
    values: dict[Node, torch.Tensor] = {}
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.target in parameters:
            values[node] = program.state_dict[parameters[node.target]]
        elif node not in written and _is_pure(node) and all(each in values for each in node.all_input_nodes):
            args, kwargs = map_arg((node.args, node.kwargs), lambda each: values[each])
            values[node] = call(node.target, args, kwargs)
    return values


def _is_pure(node: Node) -> bool:
    """Return whether a call only computes, has at most LARGEST_FOLDED elements, and dequantizes no weight."""
    if node.op != "call_function" or not isinstance(node.target, Operator):
        return False
    if node.target.namespace == "quantized_decomposed":
        return False
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or not all(isinstance(size, int) for size in value.shape):
        return False
    seeded = torch.Tag.nondeterministic_seeded in node.target.tags
    return value.numel() <= LARGEST_FOLDED and not declared(node.target).is_mutable and not seeded


def _written_in_place(graph: Graph) -> set[Node]:
    """Return what a writing operator writes to, and everything that may be a view's base of it."""
    written: set[Node] = set()
    waiting = [
        argument
        for node in graph.nodes
        if isinstance(node.target, Operator)
        for argument, each in zip(node.args, declared(node.target).arguments, strict=False)
        if each.alias_info is not None and each.alias_info.is_write
    ]
    while waiting:
        node = waiting.pop()
        if isinstance(node, Node) and node not in written:
            written.add(node)
            waiting.extend(node.args[:1])
    return written


def drop_empty_operands(program: ExportedProgram) -> None:
    """Concatenate without tensors that hold nothing, which models start lists with and backends need not know of."""
    for node in program.graph.nodes:
        if node.target != aten.cat.default:
            continue
        operands, *dim = node.args
        kept = [each for each in operands if each.meta["val"].numel()]
        if len(kept) == 1:
            node.target, node.args = aten.clone.default, (kept[0],)
        elif kept:
            node.args = (kept, *dim)
    program.graph_module.recompile()


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
    """Return 1 for a sum, 1/D for a mean, of float32 over the last dimension that is kept; None for any other node."""
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
    name = f"row_{size}_" + ("mean" if scale != 1.0 else "sum")
    return constant_input(program, name, torch.full((1, size), scale))


# Take out of exported graphs what computes nothing, and write out what a backend gets wrong.


CASTS = frozenset({aten.to.dtype, aten.to.dtype_layout, aten.to.device, aten.to.other, aten.type_as.default})
IDENTITIES = frozenset({aten.detach.default, aten.detach_.default, aten.alias.default, aten.lift_fresh.default})


def drop_idle_nodes(program: ExportedProgram) -> None:
    """Drop casts to the type that a tensor has, detachments, dropouts that are off, and unused nodes.

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

    The difference is up to 5e-4 at every activation of a Gemma model, without a warning.
    """
    for node in list(program.graph.nodes):
        if node.target == aten.gelu.default and node.kwargs.get("approximate", "none") == "tanh":
            with program.graph.inserting_before(node):
                node.replace_all_uses_with(_tanh_gelu(program, node, node.args[0]))
            program.graph.erase_node(node)
    program.graph_module.recompile()


def _tanh_gelu(program: ExportedProgram, node: Node, x: Any) -> Node:
    """Compute ``x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))``. Source: Hendrycks and Gimpel (arXiv:1606.08415)."""

    def call(target: Any, *args: Any) -> Node:
        made: Node = program.graph.call_function(target, args)
        made.meta["val"] = node.meta["val"]
        return made

    scale = math.sqrt(2.0 / math.pi)
    slope = call(aten.add.Tensor, call(aten.mul.Tensor, call(aten.mul.Tensor, x, x), 0.044715 * scale), scale)
    bent = call(aten.tanh.default, call(aten.mul.Tensor, x, slope))
    return call(aten.mul.Tensor, call(aten.mul.Tensor, x, 0.5), call(aten.add.Tensor, bent, 1.0))
