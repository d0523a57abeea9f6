"""Give an accelerator's backend the dense parts of a method: what lies between two operators on state.

A part is a functional graph of products, norms, activations and rotary embeddings over float32. Rows, windows, recurrent
states, positions and ids stay outside, so that methods of the accelerator and of the CPU share the state.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from hybridge.export.operators.elementwise import activation, gated, layer_norm, rms_norm, rotary
from hybridge.export.operators.linear import Factors, weights
from hybridge.export.pinned.coreml import compiled_for_coreml
from hybridge.export.pinned.delegates import (
    DIM_ORDER_CLONE,
    Compiled,
    Compiler,
    Cutter,
    Parts,
    Specs,
    connected_parts,
    decomposed,
    parts_of,
    read_specs,
)
from hybridge.export.pinned.executorch import CLONE, edge
from hybridge.export.pinned.openvino import compiled_blob
from hybridge.export.pinned.torch_export import Operator
from hybridge.export.pinned.vulkan import compiled_for_vulkan
from hybridge.runtime.artifact.options import ExportOptions

aten, own, core, ours = edge.aten, edge.hybridge, torch.ops.aten, torch.ops.hybridge

DECOMPOSED: Mapping[Operator, Callable[..., Any]] = {
    ours.rms_norm.default: rms_norm,
    ours.layer_norm.default: layer_norm,
    ours.gated.default: gated,
    ours.activation.default: activation,
    ours.rotary.default: rotary,
    ours.linear.default: core.linear.default,
    DIM_ORDER_CLONE: lambda x, **_: core.clone.default(x),
}
"""Core operators of those that are not: what our kernels compute, as its reference writes it."""

PRODUCTS = frozenset({own.linear.default, own.block_linear.default, aten.mm.default, aten.addmm.default, aten.bmm.default})
"""Operators that make a part worth giving away."""

OWN = frozenset({own.rms_norm.default, own.layer_norm.default, own.gated.default, own.activation.default, own.rotary.default})
"""Operators of ours that are made of core ones again."""

CORE = frozenset(
    {
        aten.add.Tensor,
        aten.add.Scalar,
        aten.sub.Tensor,
        aten.mul.Tensor,
        aten.mul.Scalar,
        aten.div.Tensor,
        aten.neg.default,
        aten.exp.default,
        aten.rsqrt.default,
        aten.pow.Tensor_Scalar,
        aten.mean.dim,
        aten.sum.dim_IntList,
        aten.sigmoid.default,
        aten.tanh.default,
        aten.relu.default,
        aten.gelu.default,
        aten.clamp.default,
        aten.view_copy.default,
        aten.permute_copy.default,
        aten.unsqueeze_copy.default,
        aten.squeeze_copy.dims,
        aten.expand_copy.default,
        aten.select_copy.int,
        aten.slice_copy.Tensor,
        aten.split_with_sizes_copy.default,
        aten.cat.default,
        CLONE,
    }
)
"""Core operators on float32 that move or compute numbers one for one, or along a dimension."""


class DenseOperators:
    """What may be inside a part of ``program``: dense operators over float32, none of which reads the state."""

    def __init__(self, program: ExportedProgram) -> None:
        signature = program.graph_signature
        state = {*signature.buffers_to_mutate.values()}
        self._state = {name for name, target in signature.inputs_to_buffers.items() if target in state}

    def has(self, node: Node) -> bool:
        """Return whether a node may be inside."""
        if node.op != "call_function":
            return False
        if node.target is operator.getitem:
            return self.has(node.all_input_nodes[0])
        if any(each.name in self._state for each in node.all_input_nodes):
            return False
        if node.target in PRODUCTS:
            return _is_float(node) and not _is_row(node)
        return node.target in CORE | OWN and all(map(_is_float, (node, *node.all_input_nodes)))


def _is_float(node: Node) -> bool:
    value = node.meta["val"]
    return all(
        isinstance(each, Tensor) and each.dtype == torch.float32
        for each in (value if isinstance(value, list | tuple) else [value])
    )


def _is_row(node: Node) -> bool:
    """Return whether a product is of one row alone, such as the head's: our kernels are as fast, and spare a second copy."""
    shape = node.meta["val"].shape
    return bool(shape[:-1].numel() == 1)


class DelegatePartitioner(Cutter):  # type: ignore[misc]  # untyped upstream
    """Cuts a method into parts for an accelerator: as few and as large as they can be, each with a product."""

    def __init__(self, specs: Mapping[str, str]) -> None:
        super().__init__()
        self.specs = specs

    def partition(self, exported_program: ExportedProgram) -> Parts:
        """Mark the parts of a method."""
        _DECOMPOSED.clear()
        found = connected_parts(exported_program, DenseOperators(exported_program).has)
        parts = [nodes for nodes in found if any(node.target in PRODUCTS for node in nodes)]
        return parts_of(exported_program, parts, PartCompiler.__name__, self.specs)


def delegate_partitioner(options: ExportOptions) -> DelegatePartitioner:
    """Return what cuts a method for the delegate of an export."""
    specs = {"delegate": options.delegate, "device": options.delegate_device, "weights": options.stored_for_delegate}
    return DelegatePartitioner(specs)


COMPILERS: Mapping[str, Callable[[GraphModule, Sequence[Sequence[int]], str, str], Compiled]] = {
    "openvino": lambda *part: Compiled(processed_bytes=compiled_blob(*part)),
    "vulkan": compiled_for_vulkan,
    "coreml": compiled_for_coreml,
}
"""What compiles a part, a graph of core operators with the shapes of its inputs, for a device and weights."""


@final
class PartCompiler(Compiler):  # type: ignore[misc]  # untyped upstream
    """Compiles the parts of a method; ExecuTorch finds it by the name of this class."""

    @staticmethod
    def preprocess(edge_program: ExportedProgram, compile_specs: Specs) -> Compiled:
        """Return the blob of a part."""
        specs = read_specs(compile_specs)
        names = edge_program.graph_signature.user_inputs
        shapes = [tuple(node.meta["val"].shape) for node in edge_program.graph.nodes if node.name in names]
        graph = core_graph(edge_program, shapes)
        return COMPILERS[specs["delegate"]](graph, shapes, specs["device"], specs["weights"])


def core_graph(program: ExportedProgram, shapes: Sequence[Sequence[int]]) -> GraphModule:
    """Return a part as a graph of PyTorch's core operators, with weights in float32. shapes: of its inputs."""
    module: Any = program.module(check_guards=False)
    for node in list(module.graph.nodes):
        if node.target == own.block_linear.default:
            x, packed, *factors, bias, rows, _ = node.args
            given = [None if each is None else attribute(module, each.target) for each in factors]
            name = f"dense_{node.name}"
            weight = weights(attribute(module, packed.target), Factors(*given), rows)
            module.register_parameter(name, nn.Parameter(weight, requires_grad=False))
            with module.graph.inserting_before(node):
                dense = module.graph.get_attr(name)
                product = module.graph.call_function(core.linear.default, (x, dense, bias))
            node.replace_all_uses_with(product)
            module.graph.erase_node(node)
    module.graph.eliminate_dead_code()
    module.recompile()
    form, targets = f"{shapes} {form_of(module)}", [str(node.target) for node in module.graph.find_nodes(op="get_attr")]
    if (known := _DECOMPOSED.get(form)) is not None:
        graph, places = known
        return GraphModule({name: attribute(module, targets[place]) for name, place in places.items()}, graph)
    traced = decomposed(module, DECOMPOSED, shapes)
    addresses = [attribute(module, name).data_ptr() for name in targets]
    names = [str(node.target) for node in traced.graph.find_nodes(op="get_attr")]
    found = {name: attribute(traced, name).data_ptr() for name in names}
    if len({*addresses}) == len(addresses) and {*found.values()}.issubset(addresses):
        _DECOMPOSED[form] = traced.graph, {name: addresses.index(address) for name, address in found.items()}
    return traced


_DECOMPOSED: dict[str, tuple[Graph, dict[str, int]]] = {}
"""Graphs of core operators by the form of the part, with the places of its weights: a model's layers are alike."""


def form_of(module: GraphModule) -> str:
    """Return a text that parts have in common which differ in the numbers of their weights alone."""
    places = {node: f"%{place}" for place, node in enumerate(module.graph.nodes)}

    def described(node: Node) -> str:
        args, kwargs = map_arg((node.args, node.kwargs), places.__getitem__)
        weight = attribute(module, str(node.target)) if node.op == "get_attr" else None
        what = (weight.dtype, weight.shape, weight.stride()) if weight is not None else node.target
        return f"{node.op} {what if node.op in ('get_attr', 'call_function') else ''} {args} {kwargs}"

    return "\n".join(map(described, module.graph.nodes))


def attribute(module: nn.Module, name: str) -> Tensor:
    """Return the parameter or buffer of a qualified name."""
    found: Tensor = operator.attrgetter(name)(module)
    return found.detach()
