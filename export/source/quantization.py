"""Dequantize the weights of quantized checkpoints: which stored tensors make a weight, and the arithmetic that they share.

``quant_method`` in config.json selects the method, the names of the tensors select the encoding of each weight, and their
shapes its bits, so nothing depends on which layers the config names. Each weight becomes a float32 tensor under the name
that the unquantized checkpoint has for it, and only when it is read. Numbers on a grid of few bits stay on it, and
``export/weights.py`` finds it. A field of the config or a tensor of a weight that no reader knows is refused by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from types import EllipsisType
from typing import Any, Protocol

import torch
from torch import Tensor

from hybridge.errors import CheckpointError, UnsupportedModelError

ORIGINAL = "Take the unquantized checkpoint, in float32, float16 or bfloat16; 'hybridge export --quantize' quantizes it."

WeightParts = Mapping[str, Tensor]
"""The stored tensors of one weight, by the endings of their names."""


class LazyTensor(Protocol):
    """A tensor that is read when it is indexed with ``...``, as a slice of safetensors is."""

    def __getitem__(self, index: EllipsisType, /) -> Tensor: ...


@dataclass(frozen=True, kw_only=True)
class WeightEncoding:
    """One way to store a weight in several tensors.

    Args:
        marker: the ending of the one tensor that every weight of this encoding has, and nothing else.
        parts: the endings of the others, each of which may be missing.
        weight: the ending of the weight's name in the unquantized checkpoint.
        decode: computes the float32 weight.
        check: raises UnsupportedModelError for a config that ``decode`` does not handle.
    """

    marker: str
    parts: tuple[str, ...]
    weight: str
    decode: Callable[[WeightParts, Quantization], Tensor]
    check: Callable[[Quantization], None] = lambda quantization: None


@dataclass(frozen=True, kw_only=True)
class QuantizationMethod:
    """A library's or a format's way to quantize.

    Args:
        name: for people.
        fields: patterns of the fields of its config that are read, or that change no number of a weight.
        beside: patterns of stored tensors that belong to no weight.
        bits: the most bits of a weight.
    """

    name: str
    encodings: tuple[WeightEncoding, ...]
    fields: tuple[str, ...]
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

    def check_fields(self) -> None:
        """Raise UnsupportedModelError for a field of the config that no reader knows, unless it is empty, false or 0."""
        for name, value in self.config.items():
            if value and not any(fnmatch(name, pattern) for pattern in (*self.method.fields, "quant_method")):
                raise self.refused(name, value)

    def check_values(self, name: str, *known: Any) -> None:
        """Raise UnsupportedModelError if the field ``name`` has another value than the ``known`` ones."""
        value = self.config.get(name)
        if value is not None and value not in known:
            raise self.refused(name, value, f" (it reads {', '.join(map(repr, known))})" if known else "")

    def refused(self, name: str, value: Any, known: str = "") -> UnsupportedModelError:
        """Return the refusal of a field of the config. known: words for the values that are read."""
        shown = repr(value) if len(repr(value)) <= 80 else f"{repr(value)[:80]}…"
        return UnsupportedModelError(
            f"the weights are quantized by {self.method.name} with {name} = {shown}, which hybridge does not read{known}. "
            f"{ORIGINAL}"
        )

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
        """Return the float32 weight.

        Raises CheckpointError if its parts do not belong together, UnsupportedModelError if a part changes nothing: then it
        is of a form that looks like this one.
        """
        name, parts = self.quantization.name, PartsRead(self.parts)
        try:
            weight = self.encoding.decode(parts, self.quantization)
        except (RuntimeError, ValueError, KeyError, IndexError, TypeError) as error:
            reason = (str(error).strip().splitlines() or [""])[0]
            raise CheckpointError(
                f"{name} is not stored as {self.quantization.method.name} stores weights ({type(error).__name__}: {reason})."
            ) from error
        if unread := sorted(self.parts.keys() - parts.read):
            raise UnsupportedModelError(
                f"{name.removesuffix(self.encoding.weight)}{unread[0]} is a part of a weight that hybridge cannot read as "
                f"{self.quantization.method.name}. {ORIGINAL}"
            )
        return weight


class PartsRead(Mapping[str, Tensor]):
    """The stored tensors of a weight, each read when a decoder asks for it. read: the endings that were asked for."""

    def __init__(self, stored: Mapping[str, LazyTensor]) -> None:
        self.stored = stored
        self.read: set[str] = set()

    def __getitem__(self, end: str) -> Tensor:
        part = self.stored[end]
        self.read.add(end)
        return part[...]

    def __contains__(self, end: object) -> bool:
        return end in self.stored

    def __iter__(self) -> Iterator[str]:
        return iter(self.stored)

    def __len__(self) -> int:
        return len(self.stored)


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
    shifted = words.unsqueeze(dim + 1) >> shifts.view(-1, *[1] * (words.dim() - dim - 1))
    return (shifted & ((1 << bits) - 1)).flatten(dim, dim + 1)


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


Block = Sequence[int]
"""Rows and columns that share a scale; -1 for all of them."""


def spread(values: Tensor, shape: Sequence[int], blocks: Iterable[Block] = ()) -> Tensor:
    """Repeat values [..., n, k], one for each block, to a weight's shape [..., N, K].

    Without a block that fits, they are one for all, for each row ([N] or [N, 1]), for each column, or for each number.

    Args:
        values: [..., n, k]; dimensions at the end may be left out.
        shape: [..., N, K].
        blocks: the sizes of blocks that the format or the config names; the last ones of a weight may be cut off.

    Raises:
        ValueError: no reading of ``values`` fits ``shape``, or two blocks do.
    """
    if values.numel() == 1:
        return values.reshape(())
    values = values[(..., *[None] * (len(shape) - values.dim()))]
    fitting = {block for each in blocks if (block := _fitting(each, values, shape))}
    if len(fitting) > 1:
        raise ValueError(f"scales of {list(values.shape)} for a weight of {list(shape)} may be of several sizes of blocks")
    for rows, columns in fitting:
        values = values.repeat_interleave(rows, -2).repeat_interleave(columns, -1)[..., : shape[-2], : shape[-1]]
    if any(own not in (1, size) for own, size in zip(values.shape[-2:], shape[-2:], strict=True)):
        raise ValueError(f"scales or zero points of {list(values.shape)} for a weight of {list(shape)}")
    return values


def _fitting(block: Block, values: Tensor, shape: Sequence[int]) -> tuple[int, ...] | None:
    """Return the sizes of a block within the weight if there is a value for each such block, else None."""
    sizes = tuple(min(size, whole) if size > 0 else whole for size, whole in zip(block, shape[-2:], strict=True))
    counts = [math.ceil(whole / size) for size, whole in zip(sizes, shape[-2:], strict=True)]
    return sizes if counts == list(values.shape[-2:]) else None


def scaled(
    numbers: Tensor, scales: Tensor, zeros: Tensor | None = None, *, blocks: Iterable[Block] = (), groups: Tensor | None = None
) -> Tensor:
    """Return (numbers - zeros) * scales as float32 [..., N, K].

    Args:
        numbers: [..., N, K].
        scales: as ``spread`` takes them; zeros likewise.
        blocks: the sizes of blocks that share a scale.
        groups: the group of each column, int [K], for scales and zeros [N, G].

    Raises:
        ValueError: scales or zeros do not fit the numbers.
    """
    blocks = list(blocks)

    def each(values: Tensor) -> Tensor:
        return spread(values if groups is None else values[:, groups.long()], numbers.shape, blocks)

    if zeros is not None:
        if zeros.shape != scales.shape:
            raise ValueError(f"zero points of {list(zeros.shape)} beside scales of {list(scales.shape)}")
        numbers = numbers.float() - each(zeros.float())
    return numbers.float() * each(scales.float())
