"""ExecuTorch 1.5.1 and PyTorch 2.13: how a method is cut into parts, and a part is given to a backend.

The lowering finds the class that compiles for a backend by the backend's name among the subclasses of ``Compiler``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, TypeAlias
from unittest import mock

import torch
from executorch.exir import to_edge
from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult
from executorch.exir.backend.utils import tag_constant_data
from executorch.exir.lowered_backend_module import LoweredBackendModule
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase
from torch.utils import _pytree as pytree

Compiler: TypeAlias = BackendDetails
"""Its ``preprocess(edge_program, compile_specs)`` returns a ``Compiled``; a final class, for which no other may stand."""

Compiled: TypeAlias = PreprocessResult
Specs: TypeAlias = list[CompileSpec]
Cutter: TypeAlias = Partitioner
"""Its ``partition(exported_program)`` returns the ``Parts`` of a method."""

Parts: TypeAlias = PartitionResult

DIM_ORDER_CLONE = torch.ops.dim_order_ops._clone_dim_order.default
"""A copy, as ExecuTorch writes it; takes an order of dimensions by name."""


class _Chosen(OperatorSupportBase):
    def __init__(self, is_inside: Callable[[Node], bool]) -> None:
        self._is_inside = is_inside

    def is_node_supported(self, submodules: Mapping[str, nn.Module], node: Node) -> bool:
        return self._is_inside(node)


def connected_parts(program: ExportedProgram, is_inside: Callable[[Node], bool]) -> list[list[Node]]:
    """Return the nodes that may be inside of a part, in parts as few and as large as they can be without a cycle."""
    cutter = CapabilityBasedPartitioner(program.graph_module, _Chosen(is_inside), allows_single_node_partition=True)
    return [list(each.nodes) for each in cutter.propose_partitions()]


def decomposed(module: nn.Module, table: Mapping[Any, Callable[..., Any]], shapes: Sequence[Sequence[int]]) -> GraphModule:
    """Return the graph of a module's call with float32 inputs of these shapes, with operators replaced by the table's."""
    trace = make_fx(module, decomposition_table=table, tracing_mode="fake", _allow_non_fake_inputs=True)
    traced: GraphModule = trace(*map(torch.zeros, shapes))
    return traced


def edge_program(graph: GraphModule, shapes: Sequence[Sequence[int]]) -> ExportedProgram:
    """Return a graph of core operators with float32 inputs of these shapes as the compilers in ExecuTorch's wheel take it."""
    inputs = tuple(torch.zeros(*shape) for shape in shapes)
    made: ExportedProgram = to_edge(torch.export.export(graph, inputs, strict=False)).exported_program()
    return made


def hand_to(program: ExportedProgram, backend: str) -> None:
    """Let the runtime give the compiled parts of a method to a backend of this name, in place of their compiler's.

    ExecuTorch finds a compiler by its class's name, and its own for Vulkan and Core ML have those of the backends already.
    """
    for part in _compiled_parts(program):
        part._backend_id = backend


def compiled_bytes(program: ExportedProgram) -> int:
    """Return the bytes of a method's compiled parts, weights beside them included."""
    weights = [part.named_data_store_output for part in _compiled_parts(program)]
    return sum(len(part.processed_bytes) for part in _compiled_parts(program)) + sum(
        len(data) for each in weights if each is not None for data in each.buffers
    )


def _compiled_parts(program: ExportedProgram) -> list[LoweredBackendModule]:
    return [part for part in program.graph_module.children() if isinstance(part, LoweredBackendModule)]


def parts_of(program: ExportedProgram, parts: Sequence[Sequence[Node]], backend: str, specs: Mapping[str, str]) -> Parts:
    """Mark the nodes of each part, and the constants that it alone reads, for a backend and its compiler's options."""
    given = DelegationSpec(backend, [CompileSpec(key, value.encode()) for key, value in specs.items()])
    for number, nodes in enumerate(parts):
        for node in nodes:
            node.meta["delegation_tag"] = f"part_{number}"
    tag_constant_data(program)
    return PartitionResult(
        tagged_exported_program=program, partition_tags={f"part_{number}": given for number in range(len(parts))}
    )


@contextmanager
def parts_uncomputed() -> Iterator[None]:
    """Trace over calls of compiled parts by the shapes of their results; each pass would run what a part was made of."""

    def results(part: LoweredBackendModule, *_: object) -> object:
        outputs = part.original_module.graph.output_node().args[0]
        values: list[Tensor] = [node.meta["val"] for node in outputs]
        empty = [torch.empty_strided(each.shape, each.stride(), dtype=each.dtype) for each in values]
        return pytree.tree_unflatten(empty, part.original_module.call_spec.out_spec)

    calls = import_module("torch._higher_order_ops.executorch_call_delegate")  # whose name is also the operator's there
    with mock.patch.object(calls, "call_delegate_cpu", results):
        yield


def read_specs(specs: Specs) -> dict[str, str]:
    """Return a compiler's options."""
    return {each.key: each.value.decode() for each in specs}
