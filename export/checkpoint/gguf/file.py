"""A GGUF file: what it says of itself, and its tensors, read when they are wanted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hybridge.cache.errors import CheckpointError, UnsupportedModelError, UsageError
from hybridge.export.checkpoint.gguf.blocks import FLOATS, KINDS, decode
from hybridge.export.checkpoint.gguf.header import TensorEntry, read_header
from hybridge.export.layers.rounded_weight import RoundedWeight

LARGEST = 1 << 40
"""Elements of a tensor that anybody has."""


@dataclass(frozen=True, kw_only=True)
class GgufTensor:
    """A tensor of a file. kind: GGML's number of its type; begin, size: its bytes."""

    path: Path
    name: str
    shape: tuple[int, ...]
    kind: int
    begin: int
    size: int

    def read(self) -> Tensor:
        """Return its numbers in float32. Q4_0, Q8_0 and the other types of whole numbers and scales are exact."""
        if self.kind in FLOATS:
            return torch.from_numpy(np.array(self._data())).view(FLOATS[self.kind]).float().view(self.shape)
        from hybridge.export.pinned.checkpoints import decoded

        return decoded(np.asarray(self._data()).reshape(self.rows, -1), self.kind).view(self.shape)

    def blocks(self) -> RoundedWeight | None:
        """Return its rows [N, K] as they are stored; None for a type that our kernels do not have."""
        data = torch.from_numpy(np.array(self._data())).view(self.rows, -1)
        return decode(data, self.kind, _block(self.path, self.name, self.kind)[1])

    @property
    def rows(self) -> int:
        """Return the number of its rows, of all matrices where it is a stack of them."""
        return prod(self.shape[:-1])

    @property
    def is_float(self) -> bool:
        """Return whether its numbers are floats by themselves."""
        return self.kind in FLOATS

    @property
    def has_kernels(self) -> bool:
        """Return whether our kernels have its type."""
        return self.is_float or self.kind in KINDS

    @property
    def kind_name(self) -> str:
        """Return what GGML calls its type."""
        from hybridge.export.pinned.checkpoints import name_of

        return name_of(self.kind)

    def _data(self) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        return np.memmap(self.path, mode="r", offset=self.begin, shape=(self.size,), dtype=np.uint8)


@dataclass(frozen=True, kw_only=True)
class GgufFile:
    """metadata: by its names, arrays of strings as their length; tensors: by name."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]

    @property
    def architecture(self) -> str:
        """Return what llama.cpp calls the model's family."""
        return str(self.metadata["general.architecture"])

    def get(self, name: str, default: Any = None) -> Any:
        """Return what the file says of the model by a name without the architecture before it."""
        return self.metadata.get(f"{self.architecture}.{name}", default)

    def __getitem__(self, name: str) -> Any:
        """Return the same. Raises CheckpointError where the file does not say it."""
        value = self.get(name)
        if value is None:
            raise CheckpointError(f"{self.path} lacks {self.architecture}.{name}; convert it again with llama.cpp of today.")
        return value


def open_gguf(path: Path) -> GgufFile:
    """Return the file at ``path``.

    Raises CheckpointError where it is damaged or only a part of it is there, UnsupportedModelError for a type of tensors that
    cannot be read, UsageError where the package for its types is not installed.
    """
    header = read_header(path)
    parts = header.metadata.get("split.count")
    if isinstance(parts, int) and parts > 1:
        raise UnsupportedModelError(
            f"{path} is one of {parts} parts of a model. Make one file of them with llama.cpp's "
            "'llama-gguf-split --merge', and export that."
        )
    size = path.stat().st_size
    tensors = {entry.name: _tensor(path, entry, begin=header.begin, end=size) for entry in header.tensors}
    return GgufFile(path=path, metadata=header.metadata, tensors=tensors)


def _tensor(path: Path, entry: TensorEntry, *, begin: int, end: int) -> GgufTensor:
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
        raise CheckpointError(f"{path} is only there in part: {name} ends behind its {end:,} bytes; download it again.")
    return GgufTensor(path=path, name=name, shape=shape, kind=kind, begin=begin + entry.offset, size=size)


def _block(path: Path, name: str, kind: int) -> tuple[int, int]:
    """Elements and bytes of a block of a type."""
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
