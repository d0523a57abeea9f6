"""Read a GGUF file: its header, and its tensors as numbers or as quantized blocks when they are wanted."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import EllipsisType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hybridge.errors import CheckpointError, UnsupportedModelError, UsageError
from hybridge.export.operators.linear import Factors
from hybridge.export.source.gguf.parts import check_parts, find_parts
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
        if self.kind in FLOATS:
            return torch.from_numpy(np.array(self._data())).view(FLOATS[self.kind]).float().view(self.shape)
        from hybridge.export.pinned.checkpoints import decoded

        return decoded(np.asarray(self._data()).reshape(self.rows, -1), self.kind).view(self.shape)

    def blocks(self) -> RoundedWeight | None:
        """Return its rows [N, K] in their stored blocks, or None for a type without kernels."""
        data = torch.from_numpy(np.array(self._data())).view(self.rows, -1)
        return decode(data, self.kind, _block(self.path, self.name, self.kind)[1])

    @property
    def rows(self) -> int:
        """Return the number of its rows, of all matrices if it is a stack."""
        return prod(self.shape[:-1])

    @property
    def is_float(self) -> bool:
        """Return whether it is stored as plain floats."""
        return self.kind in FLOATS

    @property
    def has_kernels(self) -> bool:
        """Return whether our kernels support its type."""
        return self.is_float or self.kind in KINDS

    @property
    def kind_name(self) -> str:
        """Return GGML's name of its type."""
        from hybridge.export.pinned.checkpoints import name_of

        return name_of(self.kind)

    def _data(self) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        return np.memmap(self.path, mode="r", offset=self.begin, shape=(self.size,), dtype=np.uint8)


@dataclass(frozen=True, kw_only=True)
class GgufFile:
    """An opened file, or several that are parts of one model.

    parts: the files, in order; metadata: by name, arrays of strings as their length; tensors: by name, none read yet.
    """

    parts: tuple[Path, ...]
    metadata: Mapping[str, Any]
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
    return GgufFile(parts=tuple(parts), metadata=first, tensors=tensors)


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
    if kind in FLOATS:
        return 1, FLOATS[kind].itemsize
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


# The header: metadata and the table of tensors. Every length is compared with the rest of the file before anything is
# read or allocated by it, so that a damaged or forged file is refused at once. Source: ggml ``docs/gguf.md``, versions
# 2 and 3.


VERSIONS = (2, 3)
"""Supported versions; version 1 counted in 32 bits and is gone."""
NUMBERS: Mapping[int, struct.Struct] = {
    kind: struct.Struct(f"<{letter}") for kind, letter in zip((0, 1, 7, 2, 3, 4, 5, 6, 10, 11, 12), "Bb?HhIifQqd", strict=True)
}
STRING, ARRAY = 8, 9
COUNT, KIND = NUMBERS[10], NUMBERS[4]
ALIGNMENT = 32
"""The alignment of tensors in a file that does not set it."""

# A large vocabulary has 2^18 tokens and twice as many merges, a large model some thousand tensors and a hundred
# entries.
MOST_ITEMS, MOST_TENSORS, MOST_ENTRIES, MOST_DIMENSIONS = 1 << 22, 1 << 20, 1 << 16, 4
LONGEST_NAME, LONGEST_TEXT = 1 << 10, 1 << 24


@dataclass(frozen=True, kw_only=True)
class TensorInfo:
    """An entry of the table. shape: in torch's order; kind: GGML's number of its type; offset: from the first tensor's byte."""

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int


@dataclass(frozen=True, kw_only=True)
class GgufHeader:
    """A header. metadata: by name, arrays of strings as their length unless asked for; begin: position of the tensors."""

    metadata: Mapping[str, Any]
    tensors: tuple[TensorInfo, ...]
    begin: int


def read_header(path: Path, strings: Collection[str] = ()) -> GgufHeader:
    """Read the header of the file at ``path``, with the arrays of strings that ``strings`` names.

    Raises CheckpointError, which says which length or value is wrong.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Reader(data, strings).header()
    except (OSError, ValueError, struct.error) as error:  # ValueError: also an empty file, or text that is not UTF-8
        raise CheckpointError(f"{path} cannot be read as GGUF ({error}); download it again.") from None


class _Reader:
    """Reads a header value by value. Raises ValueError for impossible ones."""

    def __init__(self, data: mmap.mmap, strings: Collection[str]) -> None:
        self.data, self.strings, self.place, self.what = data, strings, 0, "its first bytes"

    def header(self) -> GgufHeader:
        if self._bytes(4) != b"GGUF":
            raise ValueError("it does not begin with the letters GGUF")
        if (version := self._number(KIND)) not in VERSIONS:
            raise ValueError(f"it is of version {version}, not 2 or 3")
        tensors = self._count("the number of its tensors", MOST_TENSORS, 24)
        entries = self._count("the number of its entries", MOST_ENTRIES, 13)
        metadata: dict[str, Any] = {}
        for index in range(entries):
            name = self._name(f"the name of entry {index}", metadata)
            self.what = name
            metadata[name] = self._value(self._number(KIND))
        found: dict[str, TensorInfo] = {}
        for index in range(tensors):
            name = self._name(f"the name of tensor {index}", found)
            found[name] = self._tensor(name)
        alignment = _alignment(metadata)
        return GgufHeader(metadata=metadata, tensors=tuple(found.values()), begin=-(-self.place // alignment) * alignment)

    def _tensor(self, name: str) -> TensorInfo:
        self.what = f"the shape of {name}"
        if (count := self._number(KIND)) > MOST_DIMENSIONS:
            raise ValueError(f"{name} has {count} dimensions, and at most {MOST_DIMENSIONS} are known")
        shape = [self._number(COUNT) for _ in range(count)]
        return TensorInfo(name=name, shape=tuple(reversed(shape)), kind=self._number(KIND), offset=self._number(COUNT))

    def _value(self, kind: int) -> Any:
        if kind in NUMBERS:
            return self._number(NUMBERS[kind])
        if kind == STRING:
            return self._text(LONGEST_TEXT)
        if kind == ARRAY:
            return self._array(self._number(KIND))
        raise ValueError(f"{self.what} is of type {kind}, which no value has")

    def _array(self, kind: int) -> list[Any] | int:
        if kind == STRING:
            count = self._count(self.what, MOST_ITEMS, COUNT.size)
            if self.what in self.strings:
                return [self._text(LONGEST_TEXT) for _ in range(count)]
            for _ in range(count):
                self._skip(self._number(COUNT))
            return count
        if kind not in NUMBERS:
            raise ValueError(f"{self.what} is an array of type {kind}, which is not known")
        number = NUMBERS[kind]
        count = self._count(self.what, MOST_ITEMS, number.size)
        return [value for (value,) in number.iter_unpack(self._bytes(count * number.size))]

    def _count(self, what: str, most: int, size: int) -> int:
        """Read a number of things that take ``size`` bytes or more each."""
        self.what = what
        count: int = self._number(COUNT)
        if count > min(most, self._left() // size):
            raise ValueError(f"{what} should count {count:,}, more than the file has or any model needs")
        return count

    def _name(self, what: str, others: Mapping[str, Any]) -> str:
        self.what = what
        name = self._text(LONGEST_NAME)
        if name in others:
            raise ValueError(f"{name} is there twice")
        return name

    def _text(self, longest: int) -> str:
        length: int = self._number(COUNT)
        if length > longest:
            raise ValueError(f"{self.what} has {length:,} bytes, and at most {longest:,} are read")
        return self._bytes(length).decode("utf-8")

    def _number(self, kind: struct.Struct) -> Any:
        return kind.unpack(self._bytes(kind.size))[0]

    def _bytes(self, count: int) -> bytes:
        begin = self.place
        self._skip(count)
        return self.data[begin : self.place]

    def _skip(self, count: int) -> None:
        if count > self._left():
            raise ValueError(f"{self.what} takes {count:,} bytes, and the file ends after {self._left():,}")
        self.place += count

    def _left(self) -> int:
        return len(self.data) - self.place


def _alignment(metadata: Mapping[str, Any]) -> int:
    alignment = metadata.get("general.alignment", ALIGNMENT)
    if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
        raise ValueError(f"general.alignment is {alignment!r}, and should be a power of two")
    return alignment


# Quantized blocks as whole numbers and factors: the same bits in the order of our kernels. Source: ggml's
# ``ggml-common.h`` and ``ggml-quants.c``; gguf's ``quants.py`` has the numbers that each block stands for. Axes: N
# rows, B blocks of a row; after them the bytes of a block, or its numbers.


FLOATS: Mapping[int, torch.dtype] = {0: torch.float32, 1: torch.float16, 30: torch.bfloat16}
"""Types that are plain floats, by GGML's number."""

IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
MXFP4 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


def decode(data: Tensor, kind: int, block_bytes: int) -> RoundedWeight | None:
    """Decode uint8 ``data`` [N, bytes of a row] of GGML's type ``kind``; None for a type without kernels."""
    if kind in FLOATS:
        dtype = FLOATS[kind]
        return RoundedWeight(quanta=data.view(dtype), factors=Factors(), bits=8 * dtype.itemsize)
    if kind not in KINDS:
        return None
    bits, parts = KINDS[kind]
    codes, factors = parts(data.unflatten(1, (-1, block_bytes)))
    quanta = codes.view(torch.int8) if bits == 8 else codes.to(torch.int8) - (1 << (bits - 1))
    return RoundedWeight(quanta=quanta.flatten(1), factors=factors, bits=bits)


CodesAndFactors = tuple[Tensor, Factors]


def _spread(data: Tensor, run: int, bits: int) -> Tensor:
    """Unpack numbers of ``bits`` to a byte each: first the lowest bits of ``run`` bytes, then the next ones."""
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8).view(-1, 1)
    spread: Tensor = (data.unflatten(-1, (-1, 1, run)) >> shifts) & ((1 << bits) - 1)
    return spread.flatten(-3)


def _halves(data: Tensor) -> Tensor:
    """Return the float16 numbers [N, …] in bytes."""
    return data.contiguous().view(torch.float16).flatten(1)


def _fives(blocks: Tensor) -> Tensor:
    """Return 32 numbers of 4 bytes with their fifth bits and 16 bytes with the others."""
    return _spread(blocks[..., 4:], 16, 4) | (_spread(blocks[..., :4], 1, 1) << 4)


def _superblock(head: Tensor) -> Factors:
    """Decode the first 16 bytes of Q4_K and Q5_K: two float16 numbers, and eight scales and eight minima of 6 bits."""
    scales, minima, upper = head[..., 4:].unflatten(-1, (3, 4)).unbind(-2)
    low = torch.cat([scales & 63, (upper & 15) | ((scales >> 2) & 48)], dim=-1)
    subtracted = torch.cat([minima & 63, (upper >> 4) | ((minima >> 2) & 48)], dim=-1)
    pairs = _halves(head[..., :4]) * torch.tensor([1.0, -1.0], dtype=torch.float16).repeat(head.shape[1])
    return Factors(low.view(torch.int8).flatten(1), subtracted.view(torch.int8).flatten(1), pairs)


def _q5_k(blocks: Tensor) -> CodesAndFactors:
    return _spread(blocks[..., 48:], 32, 4) | (_spread(blocks[..., 16:48], 32, 1) << 4), _superblock(blocks[..., :16])


def _q6_k(blocks: Tensor) -> CodesAndFactors:
    codes = _spread(blocks[..., :128], 64, 4) | (_spread(blocks[..., 128:192], 32, 2) << 4)
    scales = blocks[..., 192:208].contiguous().view(torch.int8).flatten(1)
    return codes, Factors(scales, superscales=_halves(blocks[..., 208:]))


def _iq4_xs(blocks: Tensor) -> CodesAndFactors:
    scales = _spread(blocks[..., 4:8], 1, 4) | (_spread(blocks[..., 2:4], 1, 2) << 4)
    table = torch.tensor(IQ4, dtype=torch.int8)
    factors = Factors(scales.to(torch.int8).flatten(1) - 32, superscales=_halves(blocks[..., :2]), table=table)
    return _spread(blocks[..., 8:], 16, 4), factors


def _mxfp4(blocks: Tensor) -> CodesAndFactors:
    exponents = blocks[..., 0].contiguous()
    return _spread(blocks[..., 1:], 16, 4), Factors(exponents, table=torch.tensor(MXFP4, dtype=torch.int8))


KINDS: Mapping[int, tuple[int, Callable[[Tensor], CodesAndFactors]]] = {
    # Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K
    2: (4, lambda b: (_spread(b[..., 2:], 16, 4), Factors(_halves(b[..., :2])))),
    3: (4, lambda b: (_spread(b[..., 4:], 16, 4), Factors(_halves(b[..., :2]), _halves(b[..., 2:4])))),
    6: (5, lambda b: (_fives(b[..., 2:]), Factors(_halves(b[..., :2])))),
    7: (5, lambda b: (_fives(b[..., 4:]), Factors(_halves(b[..., :2]), _halves(b[..., 2:4])))),
    8: (8, lambda b: (b[..., 2:], Factors(_halves(b[..., :2])))),
    12: (4, lambda b: (_spread(b[..., 16:], 32, 4), _superblock(b[..., :16]))),
    13: (5, _q5_k),
    14: (6, _q6_k),
    # IQ4_NL, IQ4_XS, MXFP4
    20: (4, lambda b: (_spread(b[..., 2:], 16, 4), Factors(_halves(b[..., :2]), table=torch.tensor(IQ4, dtype=torch.int8)))),
    23: (4, _iq4_xs),
    39: (4, _mxfp4),
}
"""Bits of a number and decoder of the blocks, by GGML's number of a type."""
