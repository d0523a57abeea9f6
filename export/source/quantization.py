"""Dequantize the weights of quantized checkpoints: which stored tensors make a weight, and the arithmetic that they share.

``quant_method`` in config.json selects the method, and the names of the tensors select the encoding of each weight, so
nothing depends on what the config says of single layers. Each weight becomes a float32 tensor under the name that the
unquantized checkpoint has for it, and only when it is read. Numbers on a grid of few bits stay on it, and
``export/layers.py`` finds it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from types import EllipsisType
from typing import Any, Protocol

import torch
from torch import Tensor

from hybridge.cache.errors import CheckpointError, UnsupportedModelError

ORIGINAL = "Take the unquantized checkpoint, in float32, float16 or bfloat16; 'hybridge export --quantize' quantizes it."

WeightParts = Mapping[str, Tensor]
"""The stored tensors of one weight, by the endings of their names."""


class LazyTensor(Protocol):
    """A tensor that is read when it is indexed with ``...``, as a slice of safetensors is."""

    def __getitem__(self, index: EllipsisType, /) -> Tensor: ...


@dataclass(frozen=True, kw_only=True)
class WeightEncoding:
    """One way to store a weight in several tensors.

    marker: the ending of the one tensor that every weight of this encoding has, and nothing else; parts: the endings of
    the others, each of which may be missing; weight: the ending of the weight's name in the unquantized checkpoint;
    decode: computes the float32 weight; check: raises UnsupportedModelError for a config that ``decode`` does not
    handle.
    """

    marker: str
    parts: tuple[str, ...]
    weight: str
    decode: Callable[[WeightParts, Quantization], Tensor]
    check: Callable[[Quantization], None] = lambda quantization: None


@dataclass(frozen=True, kw_only=True)
class QuantizationMethod:
    """A library's or a format's way to quantize.

    name: for people; beside: patterns of stored tensors that belong to no weight; bits: the most bits of a weight.
    """

    name: str
    encodings: tuple[WeightEncoding, ...]
    beside: tuple[str, ...] = ()
    bits: Callable[[Quantization], int] = lambda quantization: 4


@dataclass(frozen=True, kw_only=True)
class Quantization:
    """The quantization of a checkpoint: its method, and the checkpoint's own settings.

    config: the quantization config; metadata: that of the safetensors; name: the weight that is being decoded.
    """

    method: QuantizationMethod
    config: Mapping[str, Any]
    metadata: Mapping[str, str] = field(default_factory=dict)
    name: str = ""

    @property
    def bits(self) -> int:
        """Return the most bits of a weight."""
        return self.method.bits(self)

    def number(self, name: str, default: int | None = None) -> int:
        """Return an integer of the config. Raises UnsupportedModelError if it is anything else."""
        value = self.config.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool):
            raise UnsupportedModelError(f"the quantization config says {name} = {value!r}, expected a whole number. {ORIGINAL}")
        return value


def dequantized(stored: Mapping[str, LazyTensor], quantization: Quantization) -> dict[str, LazyTensor]:
    """Return the tensors of the unquantized checkpoint by name, none of them read yet. Raises UnsupportedModelError."""
    found: dict[str, QuantizedTensor] = {}
    used: set[str] = set()
    method = quantization.method
    for encoding in method.encodings:
        for stem in (name.removesuffix(encoding.marker) for name in stored if name.endswith(encoding.marker)):
            name = stem + encoding.weight
            if name not in found:
                parts = {end: stored[stem + end] for end in (encoding.marker, *encoding.parts) if stem + end in stored}
                found[name] = QuantizedTensor(parts=parts, encoding=encoding, quantization=replace(quantization, name=name))
                used |= {stem + end for end in parts}
    for encoding in {id(each.encoding): each.encoding for each in found.values()}.values():
        encoding.check(quantization)
    ignored = (name for name in stored if any(fnmatch(name, pattern) for pattern in method.beside))
    left_out = used.union(ignored)
    return dict(found) | {name: each for name, each in stored.items() if name not in left_out}


@dataclass(frozen=True, kw_only=True)
class QuantizedTensor:
    """A weight that is read and decoded when it is indexed with ``...``."""

    parts: Mapping[str, LazyTensor]
    encoding: WeightEncoding
    quantization: Quantization

    def __getitem__(self, index: EllipsisType, /) -> Tensor:
        """Return the float32 weight. Raises CheckpointError if its parts do not belong together."""
        try:
            return self.encoding.decode({end: part[...] for end, part in self.parts.items()}, self.quantization)
        except (RuntimeError, ValueError, KeyError, IndexError, TypeError) as error:
            reason = (str(error).strip().splitlines() or [""])[0]
            raise CheckpointError(
                f"{self.quantization.name} is not stored as {self.quantization.method.name} stores weights "
                f"({type(error).__name__}: {reason})."
            ) from error


# Numbers of few bits in larger words, and scales that several numbers share.
# Axes: N rows (outputs), K columns (inputs), G groups of columns.

FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""float4 e2m1 by its four bits (Open Compute Project, Microscaling Formats 1.0, section 5.3.3)."""

E8M0_BIAS = 127
"""Exponent bias of scales that are powers of two."""


def unpack_words(words: Tensor, bits: int, dim: int) -> Tensor:
    """Unpack the numbers in the 32-bit words along ``dim``, lowest bits first, to int32 of 0 to 2^bits - 1."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    dim %= words.dim()
    spread = words.unsqueeze(dim + 1) >> shifts.view(-1, *[1] * (words.dim() - dim - 1))
    return (spread & ((1 << bits) - 1)).flatten(dim, dim + 1)


def unpack_nibbles(packed: Tensor, *, low_first: bool = True) -> Tensor:
    """Unpack uint8 [..., K / 2] to int64 [..., K], indices into a table of 16."""
    halves = (packed & 15, packed >> 4) if low_first else (packed >> 4, packed & 15)
    return torch.stack(halves, -1).flatten(-2).long()


def fp4(packed: Tensor) -> Tensor:
    """Return float32 [..., K] of float4 numbers, two in a byte of uint8 [..., K / 2], the first in its lower half."""
    return torch.tensor(FP4)[unpack_nibbles(packed)]


def e8m0(scales: Tensor) -> Tensor:
    """Return the powers of two that uint8 scales stand for, float32."""
    return torch.exp2(scales.view(torch.uint8).float() - E8M0_BIAS)


def scaled(numbers: Tensor, scales: Tensor, block: Sequence[int] | None = None) -> Tensor:
    """Multiply numbers [..., N, K] with the scale of their block: scales [..., n, k], [N] (a row each), or one for all.

    block: rows and columns of a block; without it, the blocks divide rows and columns evenly. Returns float32.
    """
    numbers, scales = numbers.float(), scales.float()
    if scales.numel() == 1:
        return numbers * scales.reshape(())
    if scales.dim() < numbers.dim():
        scales = scales.unsqueeze(-1)
    for dim, size in ((-2, block[0] if block else None), (-1, block[1] if block else None)):
        repeats = size or numbers.shape[dim] // scales.shape[dim]
        scales = scales.repeat_interleave(repeats, dim).narrow(dim, 0, numbers.shape[dim])
    return numbers * scales


def grouped(numbers: Tensor, scales: Tensor, zeros: Tensor | None, groups: Tensor | None) -> Tensor:
    """Return (numbers - zeros) * scales as float32 [N, K], where scales and zeros [N, G] hold for groups of columns.

    groups: the group of each column, int [K]; without it, groups are runs of equal size.
    """
    for each in (scales, scales if zeros is None else zeros):
        if each.dim() != 2 or each.shape != scales.shape or each.shape[0] != numbers.shape[0]:
            raise ValueError(f"scales and zero points of {list(each.shape)} for a weight of {list(numbers.shape)}")
    if groups is None:
        groups = torch.arange(numbers.shape[1]) // -(-numbers.shape[1] // scales.shape[1])
    columns = groups.long()
    if zeros is not None:
        numbers = numbers - zeros[:, columns]
    return numbers.float() * scales.float()[:, columns]
