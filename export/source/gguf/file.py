"""Read a GGUF file: its header, and its tensors as numbers or as quantized blocks when they are wanted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import EllipsisType
from typing import TYPE_CHECKING, Any

import numpy as np

from hybridge.errors import CheckpointError, UnsupportedModelError, UsageError
from hybridge.export.source.gguf.parts import check_parts, find_parts
from hybridge.runtime.pack import blocks
from hybridge.runtime.pack.gguf import TensorInfo, read_header
from hybridge.runtime.pack.panels import Array

if TYPE_CHECKING:  # a file is described where PyTorch is not installed
    from torch import Tensor

    from hybridge.export.weights import RoundedWeight

LARGEST = 1 << 40
"""Most elements of a tensor."""


@dataclass(frozen=True, kw_only=True)
class GgufTensor:
    """A tensor of a file. kind: GGML's number of its type; begin, size: position and number of its bytes."""

    path: Path
    name: str
    shape: tuple[int, ...]
    kind: int
    begin: int
    size: int

    def __getitem__(self, index: EllipsisType, /) -> Tensor:
        return self.read()

    def read(self) -> Tensor:
        """Return its numbers in float32, exactly for Q4_0, Q8_0 and the other types of whole numbers and scales."""
        if self.is_float:
            import torch

            return torch.from_numpy(self.floats())
        from hybridge.export.pinned.checkpoints import decoded

        return decoded(np.asarray(self.data()).reshape(self.rows, -1), self.kind).view(self.shape)

    def floats(self) -> Array:
        """Return plain floats in float32."""
        return blocks.floats(np.array(self.data()).view(blocks.FLOATS[self.kind])).reshape(self.shape)

    def blocks(self) -> blocks.Blocks | None:
        """Return its rows [N, K] in their stored blocks, or None for a type without kernels."""
        data = np.array(self.data()).reshape(self.rows, -1)
        return blocks.decode(data, self.kind, _block(self.path, self.name, self.kind)[1])

    @property
    def rows(self) -> int:
        """Return the number of its rows, of all matrices if it is a stack."""
        return prod(self.shape[:-1])

    @property
    def is_float(self) -> bool:
        """Return whether it is stored as plain floats."""
        return self.kind in blocks.FLOATS

    @property
    def has_kernels(self) -> bool:
        """Return whether our kernels support its type."""
        return self.is_float or self.kind in blocks.KINDS

    @property
    def kind_name(self) -> str:
        """Return GGML's name of its type."""
        if self.kind in blocks.NAMES:
            return blocks.NAMES[self.kind]
        from hybridge.export.pinned.checkpoints import name_of

        return name_of(self.kind)

    def data(self) -> Array:
        """Return its bytes, which are mapped."""
        return np.memmap(self.path, mode="r", offset=self.begin, shape=(self.size,), dtype=np.uint8)


@dataclass(frozen=True, kw_only=True)
class GgufFile:
    """An opened file, or several that are parts of one model.

    parts: the files, in order; metadata: by name, arrays of strings as their length; ends: ids of the tokens whose names end a
    text, by these names; tensors: by name, none read yet.
    """

    parts: tuple[Path, ...]
    metadata: Mapping[str, Any]
    ends: Mapping[str, int]
    tensors: Mapping[str, GgufTensor]

    @property
    def path(self) -> Path:
        """Return the file with the metadata, the first of several."""
        return self.parts[0]

    @property
    def architecture(self) -> str:
        """Return llama.cpp's name of the model's family."""
        return str(self.metadata["general.architecture"])

    def get(self, name: str, default: Any = None) -> Any:
        """Return a value of the model's metadata by its name without the architecture before it."""
        return self.metadata.get(f"{self.architecture}.{name}", default)

    def __getitem__(self, name: str) -> Any:
        """Return the same value. Raises CheckpointError if the file lacks it."""
        value = self.get(name)
        if value is None:
            raise CheckpointError(f"{self.path} lacks {self.architecture}.{name}; convert it again with llama.cpp of today.")
        return value


def open_gguf(path: Path) -> GgufFile:
    """Open the file at ``path``, with the other parts of the model if it is one of several; check that all tensors are there.

    Raises:
        CheckpointError: it is damaged or incomplete, or a part is missing or of another model.
        UnsupportedModelError: a type of tensors cannot be read.
        UsageError: the package for its types is not installed.
    """
    parts = find_parts(path, read_header(path).metadata)
    headers = [read_header(part) for part in parts]
    first = headers[0].metadata
    if not isinstance(first.get("general.architecture"), str):
        raise CheckpointError(
            f"{parts[0]} cannot be read as GGUF (it does not say its general.architecture); download it again."
        )
    if len(parts) > 1:
        shapes = [{entry.name: entry.shape for entry in header.tensors} for header in headers]
        check_parts(parts, [header.metadata for header in headers], shapes)
    tensors: dict[str, GgufTensor] = {}
    for part, header in zip(parts, headers, strict=True):
        size = part.stat().st_size
        tensors |= {entry.name: _tensor(part, entry, begin=header.begin, end=size) for entry in header.tensors}
    return GgufFile(parts=tuple(parts), metadata=first, ends=headers[0].ends, tensors=tensors)


def _tensor(path: Path, entry: TensorInfo, *, begin: int, end: int) -> GgufTensor:
    name, shape, kind = entry.name, entry.shape, entry.kind
    elements, per_block, block_bytes = prod(shape), *_block(path, name, kind)
    if not shape or not 0 < elements <= LARGEST:
        raise CheckpointError(f"{path} cannot be read as GGUF ({name} has shape {list(shape)}); download it again.")
    if shape[-1] % per_block:
        raise CheckpointError(
            f"{path} cannot be read as GGUF ({name} has rows of {shape[-1]:,} numbers, which are no whole number of its blocks "
            f"of {per_block}); download it again."
        )
    size = elements // per_block * block_bytes
    if begin + entry.offset + size > end:
        raise CheckpointError(f"{path} is only there in part: {name} ends past its {end:,} bytes; download it again.")
    return GgufTensor(path=path, name=name, shape=shape, kind=kind, begin=begin + entry.offset, size=size)


def _block(path: Path, name: str, kind: int) -> tuple[int, int]:
    """Return the number of elements and bytes in a block of a type."""
    if kind in blocks.SIZES:
        return blocks.SIZES[kind]
    try:
        from hybridge.export.pinned.checkpoints import block_of, name_of
    except ImportError:
        raise UsageError(f"{path} needs the package gguf: pip install 'hybridge[checkpoints]'.") from None
    if block := block_of(kind):
        return block
    raise UnsupportedModelError(
        f"{path} has tensors of GGML's type {name_of(kind)}, such as {name}, which hybridge does not read. "
        "Take a file of Q4_0, Q8_0, K or IQ types, or the checkpoint that it was made from."
    )


# Quantized blocks as whole numbers and factors: those of ``hybridge.runtime.pack.blocks``, as tensors


def decode(data: Array, kind: int, block_bytes: int) -> RoundedWeight | None:
    """Decode ``data`` [N, bytes of a row] of GGML's type ``kind``; None for a type without kernels."""
    found = blocks.decode(data, kind, block_bytes)
    return None if found is None else rounded_weight(found)


def rounded_weight(found: blocks.Blocks) -> RoundedWeight:
    """Return blocks as tensors, which share their memory."""
    import torch

    from hybridge.export.operators.linear import Factors
    from hybridge.export.weights import RoundedWeight

    parts = (found.scales, found.minima, found.superscales, found.table)
    factors = Factors(*(None if part is None else torch.from_numpy(part) for part in parts))
    quanta = torch.from_numpy(found.quanta)
    quanta = quanta.view(torch.bfloat16) if found.quanta.dtype == np.uint16 else quanta
    return RoundedWeight(quanta=quanta, factors=factors, bits=found.bits)
