"""ExecuTorch 1.5.1: names of its edge dialect, and what the lowering is asked for beyond its documented options."""

from __future__ import annotations

import copy
import ctypes
import functools
import hashlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from executorch.backends.transforms.utils import create_constant_placeholder
from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig, ExecutorchProgramManager, schema
from executorch.exir import tensor as executorch_tensor
from executorch.exir._serialize._cord import FileBackedData
from executorch.exir._serialize._flatbuffer_program import _flatbuffer_to_program, _program_to_flatbuffer
from executorch.exir._serialize._program import _ExtendedHeader, _get_extended_header, _insert_flatbuffer_header
from executorch.exir._serialize.padding import aligned_size, pad_to
from executorch.exir.dialects._ops import ops
from executorch.exir.emit import _emit_program, _emitter
from executorch.exir.memory import alloc
from executorch.exir.passes import MemoryPlanningPass
from executorch.exir.passes.replace_view_copy_with_view_pass import _ViewSpec
from executorch.exir.schema import EValue, TensorDataLocation
from executorch.exir.tensor import ALIGNMENT, TensorSpec, make_tensor_value
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature, InputKind
from torch.fx import GraphModule, Node
from torch.fx.passes.infra.pass_base import PassResult

edge: Any = ops.edge
"""The operators of a graph that is being lowered, as ``edge.aten`` and ``edge.hybridge``: views are copies there."""

CLONE: Any = ops.edge.dim_order_ops._clone_dim_order.default
"""A clone that may also change the order of dimensions: what ``aten.clone`` becomes in the edge dialect."""


def edge_config() -> EdgeCompileConfig:
    """Return a config that takes operators which are neither ATen's core ones nor listed: ours.

    The check alone is left out; an operator without an out variant still fails, in ``to_executorch``.
    """
    return EdgeCompileConfig(_check_ir_validity=False)


Completion = Callable[[GraphModule, ExportGraphSignature], None]
"""Takes a method that all passes but the memory planning have changed: its graph, and the signature of that.

The signature's list of input specs is the very one of the edge program's own signature.
"""


def backend_config(complete: Completion | None = None) -> ExecutorchBackendConfig:
    """Return a config for methods that share their state by qualified name, write rows in place and say what it is called.

    With ``share_mutable_buffers`` the buffers of all methods lie in one arena, which a runtime allocates once for a program;
    with ``emit_mutable_buffer_names`` it hands them out by name (``hybridge.runtime.pinned``).

    complete: what still changes a method before memory is planned.
    """
    return ExecutorchBackendConfig(
        memory_planning_pass=_Planning(complete),
        run_reinplace_pass=True,  # rows are written in place, not by copying the whole buffer
        emit_mutable_buffer_names=True,
    )


class _Planning(MemoryPlanningPass):  # type: ignore[misc]  # untyped upstream
    def __init__(self, complete: Completion | None) -> None:
        super().__init__(share_mutable_buffers=True)
        self._complete = complete

    def run(self, graph_module: GraphModule, graph_signature: ExportGraphSignature | None = None) -> PassResult:
        if self._complete is not None:
            assert graph_signature is not None
            self._complete(graph_module, graph_signature)
        planned: PassResult = super().run(graph_module, graph_signature)
        return planned


def is_allocation(node: Node) -> bool:
    """Return whether a node is the memory of the next operator's output: it has no inputs and no spec before the planning."""
    return node.op == "call_function" and node.target == alloc


def copy_spec(spec: Any, copies: dict[int, Any]) -> Any:
    """Return a copy of a node's ``meta["spec"]``, of which memory is planned apart.

    copies: by the identity of what they are copies of. A view's base that has no copy stays the base.
    """
    if isinstance(spec, list | tuple):
        return type(spec)(copy_spec(each, copies) for each in spec)
    if isinstance(spec, TensorSpec) and id(spec) not in copies:
        if isinstance(spec, _ViewSpec):
            made = _ViewSpec(copies.get(id(spec._base), spec._base), spec.shape)
        else:
            made = copy.copy(spec)
            made.init_mem_planning_fields()
        copies[id(spec)] = made
    return copies.get(id(spec), spec)


def constant_input(program: ExportedProgram, name: str, value: torch.Tensor) -> Node:
    """Add a constant input to an exported graph, to its signature and to its state, before all other nodes.

    A persistent buffer that nothing writes to: the lowering stores it as it stores a weight.
    """
    graph = program.graph
    with graph.inserting_before(next(iter(graph.nodes))):
        node: Node = create_constant_placeholder(program, graph, name, InputKind.BUFFER, value, persistent_buffer=True)
    return node


# A program's constants on their way from tensors to the file, and a patch that avoids a copy


Source = Any
"""An expression in JSON that makes a constant: ``{"of": NAME}`` for a tensor of the model, or a call over such."""


def with_source(tensor: torch.Tensor, source: Source) -> torch.Tensor:
    """Mark ``tensor`` with the source of its numbers and return it; tensors computed from it have none."""
    setattr(tensor, "_hybridge_source", source)  # noqa: B010  which no tensor declares
    return tensor


def source_of(tensor: torch.Tensor) -> Source | None:
    """Return the source of a tensor, None if it has none: then nothing but the shape of a model decides its numbers."""
    return getattr(tensor, "_hybridge_source", None)


class StoredTensor(FileBackedData):  # type: ignore[misc]  # untyped upstream
    """The bytes of a tensor's storage, which are not copied until they are written to the file.

    Stands in for ``bytes`` in a program that is being assembled, which asks it for its length and tells it to write itself.
    source: as of a marked tensor.
    """

    def __init__(self, storage: Any, source: Source | None = None) -> None:
        self.source = source
        self._storage = storage  # which owns the memory
        array = (ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr())
        self._view = memoryview(array).cast("B")

    def __len__(self) -> int:
        return len(self._view)

    def __deepcopy__(self, memo: Any) -> StoredTensor:
        return self

    def prefix(self, size: int) -> bytes:
        return bytes(self._view[:size])

    def sha256(self) -> bytes:
        return hashlib.sha256(self._view).digest()

    def to_bytes(self) -> bytes:
        return bytes(self._view)

    def write_to_file(self, outfile: Any) -> None:
        outfile.write(self._view)

    def close(self) -> None:
        """Do nothing: there is no file."""


@contextmanager
def constants_in_place() -> Iterator[None]:
    """Let ``to_executorch`` leave constants where they are, and tell them apart by their sources, not by their numbers.

    By default it copies every constant of every method, only to find that it has most already, and stores equal ones once: two
    weights may be equal in one checkpoint and not in another of its shape. Here those without a source are stored once if they
    are equal, and others if they have one source. Patches the emitter's ``placeholder``, which knows a constant's tensor, and
    ``_tensor_spec_to_evalue``, for constants in the program's own file.
    """
    seen: dict[int, tuple[StoredTensor, str]] = {}  # by address, of memory that is kept so that no other gets it

    class Emitter(_emitter._TopLevelEmitter):  # type: ignore[misc]  # untyped upstream
        source: Source | None = None

        def placeholder(self, target: Any, args: Any, kwargs: Any) -> Any:
            self.source = _source(self.exported_program, target)
            try:
                return super().placeholder(target, args, kwargs)
            finally:
                self.source = None

        def _tensor_spec_to_evalue(self, spec: TensorSpec, constant_tag: str | None = None) -> EValue:
            if not _is_constant(spec):
                return super()._tensor_spec_to_evalue(spec, constant_tag)
            address = spec.storage.data_ptr()
            if address not in seen:
                stored = StoredTensor(spec.storage, self.source)
                seen[address] = stored, stored.sha256().hex() if self.source is None else repr(self.source)
            stored, identity = seen[address]
            assert len(stored) == spec.nbytes(), f"a constant of {spec.nbytes()} bytes in a storage of {len(stored)}"
            index = self.program_state.cached_spec_hash_values.get(identity, -1)
            if index == -1:
                index = self._save_new_const_tensor(spec, stored, identity)
            return EValue(make_tensor_value(index, None, spec))

    with mock.patch.object(_emit_program, "_TopLevelEmitter", Emitter):
        yield


@contextmanager
def orders_remembered() -> Iterator[None]:
    """Order the dimensions of equal strides once: ``dim_order_from_stride``, which is patched, makes a class at each call."""
    order = executorch_tensor.dim_order_from_stride
    known = functools.cache(order)

    def remembered(stride: tuple[Any, ...]) -> Any:
        return known(tuple(stride)) if all(type(each) is int for each in stride) else order(stride)

    with ExitStack() as patches:
        for module in (executorch_tensor, _emitter):
            patches.enter_context(mock.patch.object(module, "dim_order_from_stride", remembered))
        yield


def _source(program: ExportedProgram, target: Any) -> Source | None:
    """Return the source of the tensor that fills a placeholder of ``program``."""
    signature = program.graph_signature
    kinds = (signature.inputs_to_parameters, signature.inputs_to_buffers, signature.inputs_to_lifted_tensor_constants)
    name = next((names[target] for names in kinds if target in names), None)
    tensor = program.state_dict.get(name, program.constants.get(name))
    return source_of(tensor) if isinstance(tensor, torch.Tensor) else None


def file_parts(program: ExecutorchProgramManager) -> list[bytes | StoredTensor]:
    """Return a program's file in parts, in their order: constants, and all else as bytes."""
    parts: list[bytes | StoredTensor] = list(program._pte_data._buffers)
    return parts


def _is_constant(spec: TensorSpec) -> bool:
    """Return whether a tensor is in the program's segment of constants: not empty, no state, in no other file."""
    planned = spec.mem_id is not None and spec.mem_offset is not None
    outside = spec.extra_tensor_info is not None and spec.extra_tensor_info.location == TensorDataLocation.EXTERNAL
    return bool(spec.const and spec.allocated_memory and not planned and not outside)


# The program file, as its serializer reads and writes it: a flatbuffer with a header after its first 8 bytes, then segments
# with the weights, at offsets that the header has.


Chain, DelegateCall, KernelCall = schema.Chain, schema.DelegateCall, schema.KernelCall
ScalarType, Tensor, TensorList = schema.ScalarType, schema.Tensor, schema.TensorList
"""Classes of a program's plans. A tensor has ``allocation_info`` if the runtime allocates it, and is state if it has
``extra_tensor_info`` too, with its name, which ``emit_mutable_buffer_names`` writes."""

HEAD_BYTES: int = _ExtendedHeader.NUM_HEAD_BYTES
"""Number of a file's first bytes that hold its header, if it has one."""

SEGMENT_ALIGNMENT = 4096
"""More than any segment asks for."""

MAGIC = r"ET[0-9a-zA-Z][0-9a-zA-Z]"
"""The flatbuffer's identifier, bytes 4 to 8 of a program."""

CONTROL_FLOW = "executorch_prim::"
"""Namespace of the runtime's operators on sizes."""

NUMBER_OF_TENSOR = "_local_scalar"
"""Part of the name of the operator that reads a number from a tensor."""


def read_header(head: bytes) -> Any | None:
    """Return ``program_size``, ``segment_base_offset`` and ``segment_data_size`` in bytes; None without a valid header."""
    header = _get_extended_header(head)
    return header if header is not None and header.is_valid() else None


def read_program(flatbuffer: bytes) -> Any:
    """Return the ``schema.Program`` of the first ``program_size`` bytes of a file; segments are not looked at."""
    return _flatbuffer_to_program(flatbuffer)


def constant_offsets(program: Any, header: Any) -> list[tuple[int, int]]:
    """Return for each constant its offset in the file and the number of bytes up to the next one."""
    segment = program.segments[program.constant_segment.segment_index]
    starts = sorted(program.constant_segment.offsets[1:])  # the first one is no constant
    base = header.segment_base_offset + segment.offset
    return [(base + start, end - start) for start, end in zip(starts, [*starts[1:], segment.size], strict=True)]


def write_program(program: Any, segment_bytes: int) -> bytes:
    """Return the bytes before the segments, which take ``segment_bytes``: a flatbuffer with its header, padded."""
    built = _program_to_flatbuffer(program, constant_tensor_alignment=ALIGNMENT)
    header_bytes: int = aligned_size(_ExtendedHeader.EXPECTED_LENGTH, built.max_alignment)
    size = header_bytes + len(built.data)
    base = aligned_size(size, SEGMENT_ALIGNMENT)
    header = _ExtendedHeader(program_size=size, segment_base_offset=base, segment_data_size=segment_bytes)
    data = _insert_flatbuffer_header(built.data, MAGIC, pad_to(header.to_bytes(), header_bytes))
    return bytes(pad_to(data, base))


# The runtime in Python, as far as checks and profiles use it; sessions do not


def extension() -> Any:
    """Return ExecuTorch's extension module.

    The package's own entry point would import its quantization libraries, which takes seconds.
    """
    from executorch.extension.pybindings import _C

    return _C


def load_program(runtime: Any, path: Path) -> Any:
    """Return the program, whose methods share their state if they come from it; it is mapped, not read.

    The default verification accepts flipped bits; this one follows every offset of the file. Raises RuntimeError.
    """
    return runtime._load_program(str(path), program_verification=runtime.Verification.InternalConsistency)


def call_method(method: Any, inputs: tuple[Any, ...]) -> list[Any]:
    """Call a method and return its outputs in the program's own memory, valid until its next call. Raises RuntimeError."""
    outputs: list[Any] = method.call(inputs, clone_outputs=False)
    return outputs


def reset_threads(runtime: Any, count: int) -> None:
    """Replace the process's pool of threads; what was loaded before may still hold the old one and must not run."""
    runtime._unsafe_reset_threadpool(count)
