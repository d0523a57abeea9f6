"""ExecuTorch 1.5.1: the program file, as its serializer reads and writes it.

A file is a flatbuffer with a header behind its first 8 bytes, then segments with the weights: the header says where.
"""

from __future__ import annotations

from typing import Any

from executorch.exir import schema
from executorch.exir._serialize._flatbuffer_program import _flatbuffer_to_program, _program_to_flatbuffer
from executorch.exir._serialize._program import _ExtendedHeader, _get_extended_header, _insert_flatbuffer_header
from executorch.exir._serialize.padding import aligned_size, pad_to
from executorch.exir.tensor import ALIGNMENT

Chain, DelegateCall, KernelCall = schema.Chain, schema.DelegateCall, schema.KernelCall
ScalarType, Tensor, TensorList = schema.ScalarType, schema.Tensor, schema.TensorList
"""Classes of a program's plans. A tensor has ``allocation_info`` where the runtime allocates it, and is state where it has
``extra_tensor_info`` too, with its name: that is what ``emit_mutable_buffer_names`` writes."""

HEAD_BYTES: int = _ExtendedHeader.NUM_HEAD_BYTES
"""So many bytes of a file hold its header, if it has one."""

SEGMENT_ALIGNMENT = 4096
"""More than any segment asks for."""

MAGIC = r"ET[0-9a-zA-Z][0-9a-zA-Z]"
"""The flatbuffer's identifier, bytes 4 to 8 of a program."""

CONTROL_FLOW = "executorch_prim::"
"""Namespace of the runtime's operators on sizes."""

NUMBER_OF_TENSOR = "_local_scalar"
"""In the name of the operator that makes a number of a tensor."""


def read_header(head: bytes) -> Any | None:
    """Return ``program_size``, ``segment_base_offset`` and ``segment_data_size`` in bytes; None without a valid header."""
    header = _get_extended_header(head)
    return header if header is not None and header.is_valid() else None


def read_program(flatbuffer: bytes) -> Any:
    """Return the ``schema.Program`` of the first ``program_size`` bytes of a file; segments are not looked at."""
    return _flatbuffer_to_program(flatbuffer)


def constant_offsets(program: Any, header: Any) -> list[tuple[int, int]]:
    """Return where in the file each constant begins, and how many bytes there are up to the next one."""
    segment = program.segments[program.constant_segment.segment_index]
    starts = sorted(program.constant_segment.offsets[1:])  # the first one stands for no constant
    base = header.segment_base_offset + segment.offset
    return [(base + start, end - start) for start, end in zip(starts, [*starts[1:], segment.size], strict=True)]


def write_program(program: Any, segment_bytes: int) -> bytes:
    """Return what stands before the segments, which take ``segment_bytes``: a flatbuffer with its header, padded."""
    built = _program_to_flatbuffer(program, constant_tensor_alignment=ALIGNMENT)
    header_bytes: int = aligned_size(_ExtendedHeader.EXPECTED_LENGTH, built.max_alignment)
    size = header_bytes + len(built.data)
    base = aligned_size(size, SEGMENT_ALIGNMENT)
    header = _ExtendedHeader(program_size=size, segment_base_offset=base, segment_data_size=segment_bytes)
    data = _insert_flatbuffer_header(built.data, MAGIC, pad_to(header.to_bytes(), header_bytes))
    return bytes(pad_to(data, base))
