"""Read the weights of a GGUF file as the constants of a program: floats, or blocks in panels.

A source is an expression over the file's tensors (``expressions``), or ``{"packed": PART, "make": EXPRESSION, "of": NAMES,
"bits": BITS, "experts": COUNT}``: a part of the weight that the expression makes of tensors, packed as stored. With 32 bits,
its numbers are packed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from hybridge.runtime.pack.blocks import FLOATS, SIZES, Blocks, decode, floats, numbers, selected
from hybridge.runtime.pack.expressions import UnknownExpressionError, evaluate
from hybridge.runtime.pack.panels import LANES, Array, pack, pack_factors
from hybridge.runtime.pack.programs import Source, UnfitProgramError

CHUNK = 1 << 18
"""Elements that are processed at once. They stay in the processor's cache, which makes it several times faster."""


class Stored(Protocol):
    """A tensor of a file. kind: GGML's number of its type; begin: position of its first byte."""

    @property
    def path(self) -> Path: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def kind(self) -> int: ...

    @property
    def begin(self) -> int: ...


class GgufWeights:
    """The weights of a file, or of the parts of one, read when they are asked for."""

    def __init__(self, tensors: Mapping[str, Stored], others: Mapping[str, Array] | None = None) -> None:
        """Open a file. others: further arrays by name, which are not of the file."""
        self._tensors, self._others = tensors, others or {}
        self._data = {path: np.memmap(path, mode="r", dtype=np.uint8) for path in {each.path for each in tensors.values()}}
        self._last: tuple[str, Blocks] | None = None  # the parts of a weight are asked for one after the other

    def fill(self, source: Source) -> memoryview:
        """Return the bytes of a constant.

        Raises UnfitProgramError if this file has no such weights: others do, or they are damaged.
        """
        try:
            value = self._part(source) if isinstance(source, dict) and "packed" in source else self._numbers(source)
        except UnknownExpressionError as error:
            raise UnfitProgramError(str(error)) from error
        return np.ascontiguousarray(value).reshape(-1).view(np.uint8).data

    def _numbers(self, expression: Any) -> Array:
        value = evaluate(expression, self._array)
        if not isinstance(value, np.ndarray) or not np.isfinite(value).all():
            raise UnfitProgramError("a weight is not finite")
        return value

    def _part(self, source: Mapping[str, Any]) -> Array:
        key = json.dumps({name: each for name, each in source.items() if name != "packed"})
        if self._last is None or self._last[0] != key:
            self._last = key, self._packed(source["make"], source["of"], source["bits"], source["experts"])
        part = getattr(self._last[1], "quanta" if source["packed"] == "packed" else source["packed"], None)
        if not isinstance(part, np.ndarray):
            raise UnfitProgramError(f"a weight has no {source['packed']}")
        return part

    def _packed(self, make: Any, names: list[str], bits: int, experts: int) -> Blocks:
        """Return a weight whose arrays are in panels."""
        if bits == 32:
            value = self._numbers(make)
            found: Blocks | None = Blocks(quanta=value.reshape(-1, value.shape[-1]), bits=32)
        else:
            sources = [self._tensor(name) for name in names]

            def of_arrays(*arrays: Array) -> Array:
                made: Array = evaluate(make, dict(zip(names, arrays, strict=True)).__getitem__)
                return made

            found = selected(of_arrays, [each.shape for each in sources], lambda: [self._blocks(each) for each in sources])
        if found is None or found.bits != bits:
            raise UnfitProgramError("a weight's blocks are of another form")
        _check(found)
        if experts > 1:
            found = found.mapped(lambda part: _padded(part, experts))
        quanta = np.concatenate([pack(part, bits) for part in _chunks(found.quanta)])
        factors = {each.name: getattr(found, each.name) for each in fields(Blocks)} | {"quanta": quanta}
        for name in ("scales", "minima", "superscales"):
            factors[name] = None if factors[name] is None else pack_factors(factors[name])
        return Blocks(**factors)

    def _array(self, name: str) -> Array:
        return self._others[name] if name in self._others else self._floats(self._tensor(name))

    def _tensor(self, name: str) -> Stored:
        if name not in self._tensors or self._tensors[name].kind not in SIZES:
            raise UnfitProgramError(f"{name} is not there, or of a type without kernels")
        return self._tensors[name]

    def _bytes(self, tensor: Stored) -> Array:
        """Return uint8 [N, bytes of a row]."""
        per_block, size = SIZES[tensor.kind]
        rows, row = int(np.prod(tensor.shape[:-1])), tensor.shape[-1] // per_block * size
        data = self._data[tensor.path][tensor.begin : tensor.begin + rows * row]
        if len(data) < rows * row or tensor.shape[-1] % per_block:
            raise UnfitProgramError("the file is only there in part")
        return data.reshape(rows, row)

    def _floats(self, tensor: Stored) -> Array:
        if tensor.kind not in FLOATS:
            stored = self._blocks(tensor)
            assert stored is not None
            return numbers(stored).reshape(tensor.shape)
        return floats(np.ascontiguousarray(self._bytes(tensor)).view(FLOATS[tensor.kind])).reshape(tensor.shape)

    def _blocks(self, tensor: Stored) -> Blocks | None:
        parts = [decode(np.array(rows), tensor.kind, SIZES[tensor.kind][1]) for rows in _chunks(self._bytes(tensor))]
        found = [part for part in parts if part is not None]
        columns = zip(*((part.quanta, part.scales, part.minima, part.superscales) for part in found), strict=True)
        quanta, scales, minima, superscales = (None if each[0] is None else np.concatenate(each) for each in columns)
        assert quanta is not None
        first = found[0]
        return Blocks(quanta=quanta, bits=first.bits, scales=scales, minima=minima, superscales=superscales, table=first.table)


def _check(weight: Blocks) -> None:
    """Raise UnfitProgramError for numbers that are not finite, and for -128, which kernels do not multiply."""
    for part in (weight.quanta, weight.scales, weight.minima, weight.superscales):
        if part is None or part.dtype.kind not in "fu" or part.dtype == np.uint8:
            continue
        if not np.isfinite(floats(part)).all():
            raise UnfitProgramError("a weight is not finite")
    if weight.bits == 8 and (weight.quanta == -128).any():
        raise UnfitProgramError("a weight has -128")


def _padded(part: Array, experts: int) -> Array:
    """Pad the rows of each expert to whole panels."""
    own = part.reshape(experts, -1, part.shape[1])
    missing = -own.shape[1] % LANES
    return np.pad(own, ((0, 0), (0, missing), (0, 0))).reshape(-1, part.shape[1])


def _chunks(rows: Array) -> list[Array]:
    """Return whole panels of rows at a time, about CHUNK elements."""
    step = max(1, CHUNK // (rows.shape[1] * LANES)) * LANES
    return [rows[first : first + step] for first in range(0, len(rows), step)]
