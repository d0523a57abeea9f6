"""How quantized checkpoints store a weight: in which parts, and by what arithmetic these are its numbers.

A method is recognized by ``quant_method`` in config.json, its weights by the names of their parts, so nothing depends on what
the config says of single layers. Each becomes a float32 tensor, under the name that the unquantized checkpoint has for it, when
it is wanted and not before. Numbers on a grid of few bits stay on it exactly: ``export/layers.py`` finds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from types import EllipsisType
from typing import Any, Protocol

from torch import Tensor

from hybridge.cache.errors import CheckpointError, UnsupportedModelError

ORIGINAL = "Take the unquantized checkpoint, in float32, float16 or bfloat16; 'hybridge export --quantize' quantizes it."

WeightParts = Mapping[str, Tensor]
"""The parts of one weight by the ends of their names."""


class LazyTensor(Protocol):
    """A tensor that is read when it is indexed with ``...``, as a slice of safetensors is."""

    def __getitem__(self, index: EllipsisType, /) -> Tensor: ...


@dataclass(frozen=True, kw_only=True)
class Quantization:
    """What a checkpoint says of its weights. config: its quantization config; metadata: that of its safetensors.

    name: of the weight in question.
    """

    config: Mapping[str, Any]
    metadata: Mapping[str, str] = field(default_factory=dict)
    name: str = ""

    def number(self, name: str, default: int | None = None) -> int:
        """Return an integer of the config. Raises UnsupportedModelError where it is none."""
        value = self.config.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool):
            raise UnsupportedModelError(f"the quantization config says {name} = {value!r}, expected a whole number. {ORIGINAL}")
        return value


@dataclass(frozen=True, kw_only=True)
class WeightEncoding:
    """One way to store a weight.

    marker: how the name of the part ends that every quantized weight has, and nothing else; parts: how those of its other parts
    end, which may be missing; weight: what the name ends with in the unquantized checkpoint; decode: parts to float32;
    check: raises UnsupportedModelError for a config that ``decode`` is not for.
    """

    marker: str
    parts: tuple[str, ...]
    weight: str
    decode: Callable[[WeightParts, Quantization], Tensor]
    check: Callable[[Quantization], None] = lambda quantization: None


@dataclass(frozen=True, kw_only=True)
class QuantizationMethod:
    """A library's or a format's way to quantize.

    name: what people call it; beside: tensors that are no weights; bits: of a weight, at most, by what the checkpoint says.
    """

    name: str
    forms: tuple[WeightEncoding, ...]
    beside: tuple[str, ...] = ()
    bits: Callable[[Quantization], int] = lambda quantization: 4


@dataclass(frozen=True, kw_only=True)
class QuantizedTensor:
    """A weight that is read and decoded when it is indexed with ``...``."""

    parts: Mapping[str, LazyTensor]
    form: WeightEncoding
    method: QuantizationMethod
    quantization: Quantization

    @property
    def name(self) -> str:
        """Return the name of the weight."""
        return self.quantization.name

    def __getitem__(self, index: EllipsisType, /) -> Tensor:
        """Return float32 of any shape. Raises CheckpointError where the parts do not belong together."""
        try:
            return self.form.decode({end: part[...] for end, part in self.parts.items()}, self.quantization)
        except (RuntimeError, ValueError, KeyError, IndexError, TypeError) as error:
            reason = (str(error).strip().splitlines() or [""])[0]
            raise CheckpointError(
                f"{self.name} is not stored as {self.method.name} stores weights ({type(error).__name__}: {reason})."
            ) from error


def dequantized(
    stored: Mapping[str, LazyTensor], method: QuantizationMethod, quantization: Quantization
) -> dict[str, LazyTensor]:
    """Return the tensors of the unquantized checkpoint by name, none of them read yet. Raises UnsupportedModelError."""
    found: dict[str, QuantizedTensor] = {}
    for form in method.forms:
        for name in stored:
            if name.endswith(form.marker):
                found.setdefault(
                    name.removesuffix(form.marker) + form.weight, _quantized(name, form, stored, method, quantization)
                )
    for form in {id(each.form): each.form for each in found.values()}.values():
        form.check(quantization)
    taken = {part for tensor in found.values() for part in _names(tensor)}
    return dict(found) | {
        name: each for name, each in stored.items() if name not in taken and not _matches(name, method.beside)
    }


def _quantized(
    name: str, form: WeightEncoding, stored: Mapping[str, LazyTensor], method: QuantizationMethod, quantization: Quantization
) -> QuantizedTensor:
    stem = name.removesuffix(form.marker)
    parts = {end: stored[stem + end] for end in (form.marker, *form.parts) if stem + end in stored}
    about = replace(quantization, name=stem + form.weight)
    return QuantizedTensor(parts=parts, form=form, method=method, quantization=about)


def _names(tensor: QuantizedTensor) -> Iterable[str]:
    stem = tensor.name.removesuffix(tensor.form.weight) if tensor.form.weight else tensor.name
    return (stem + end for end in tensor.parts)


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)
