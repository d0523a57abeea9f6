"""The state of an ONNX artifact, in our own memory: rows by position are written in place, bounded states get new versions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridge.runtime.artifacts.manifest import OnnxEntry, TensorEntry
from hybridge.runtime.onnx.graph import ort_value


class Buffers:
    """Contiguous arrays by name, and the same memory as onnxruntime's values."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self.arrays = arrays
        self._values = {name: ort_value(array) for name, array in arrays.items()}

    @classmethod
    def zeros(cls, entries: Mapping[str, TensorEntry]) -> Buffers:
        """Return new buffers, in pages that exist once they are written to."""
        return cls({name: np.zeros(each.shape, each.dtype) for name, each in entries.items()})

    def first(self, tokens: int) -> Buffers:
        """Return the first so many of T tokens, where each is [1, T, …]; the same memory."""
        return Buffers({name: np.ascontiguousarray(each[:, :tokens]) for name, each in self.arrays.items()})

    def named(self, prefix: str) -> dict[str, Any]:
        """Return onnxruntime's values by the names that a graph has for them."""
        return {f"{prefix}{name}": value for name, value in self._values.items()}


class Version:
    """The state after a text: its length, int64 [1], and the bounded states. Nobody writes it while it is referred to."""

    def __init__(self, bounded: Mapping[str, TensorEntry]) -> None:
        self.length = np.zeros(1, np.int64)
        self.buffers = Buffers.zeros(bounded)

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {"length": self.length, **{f"layers.{name}": each for name, each in self.buffers.arrays.items()}}

    def clear(self) -> None:
        """Make all of it zero."""
        for array in self.arrays().values():
            array.fill(0)

    def copy(self, other: Version) -> None:
        """Become the same."""
        theirs = other.arrays()
        for name, array in self.arrays().items():
            array[...] = theirs[name]


@dataclass(frozen=True)
class StagedBlock:
    """So many tokens that were verified after a version, and wait for ``commit``."""

    after: Version
    tokens: int


@dataclass(frozen=True, kw_only=True)
class Committed:
    """now: the version of the text; slots: those that snapshots refer to; block: what waits; operations: int64 [1]."""

    now: Version
    slots: tuple[Version | None, ...]
    block: StagedBlock | None = None
    operations: NDArray[np.int64]


class OnnxState:
    """What is committed, which one assignment changes as a whole, and rows: by position, for all versions.

    A snapshot copies nothing. Versions that nothing refers to are written again, so there are at most two more than slots.
    """

    def __init__(self, entry: OnnxEntry, slots: int) -> None:
        self.rows = Buffers.zeros({each.name: each for each in entry.states if each.kind == "positional"})
        self._bounded = {each.name: each for each in entry.bounded}
        now = Version(self._bounded)
        self._versions = [now]
        self.committed = Committed(now=now, slots=(None,) * slots, operations=np.zeros(1, np.int64))

    @property
    def now(self) -> Version:
        return self.committed.now

    @property
    def slots(self) -> tuple[Version | None, ...]:
        return self.committed.slots

    @property
    def length(self) -> int:
        return int(self.now.length[0])

    def move(self, now: Version, slots: Sequence[Version | None], block: StagedBlock | None = None) -> None:
        """Complete an operation."""
        operations = self.committed.operations + 1
        self.committed = Committed(now=now, slots=tuple(slots), block=block, operations=operations)

    def free(self) -> Version:
        """Return a version to write, which may hold anything."""
        for version in self._versions:
            if version is not self.now and all(version is not kept for kept in self.slots):
                return version
        self._versions.append(Version(self._bounded))
        return self._versions[-1]

    def begin_rows(self) -> None:
        """Rows from the committed length on are going to be written: slots that need them keep nothing, and no block waits."""
        slots = tuple(kept if kept and int(kept.length[0]) <= self.length else None for kept in self.slots)
        self.committed = replace(self.committed, slots=slots, block=None)

    def clear(self) -> None:
        """Empty state and slots. Rows that the length does not reach are never read."""
        fresh = self.free()
        fresh.clear()
        self.move(fresh, [None] * len(self.slots))

    def buffer(self, name: str) -> NDArray[Any]:
        """Return an array by its name, a slot's in memory of its own; a slot of length -1 keeps nothing. Raises KeyError."""
        if name == "operations":
            return self.committed.operations
        if name.startswith("slots."):
            _, number, own = name.split(".", 2)
            slot = int(number)
            slots = (*self.slots[:slot], self._own(slot), *self.slots[slot + 1 :])
            self.committed = replace(self.committed, slots=slots)
            return self._own(slot).arrays()[own]
        rows = name.removeprefix("layers.")
        return self.rows.arrays[rows] if rows in self.rows.arrays else self.now.arrays()[name]

    def names(self) -> list[str]:
        """Return all names."""
        own = self.now.arrays()
        slots = [f"slots.{slot}.{name}" for slot in range(len(self.slots)) for name in own]
        return [*own, "operations", *(f"layers.{name}" for name in self.rows.arrays), *slots]

    def _own(self, slot: int) -> Version:
        """The version of a slot, a copy where something else refers to it too."""
        kept = self.slots[slot]
        others = (self.now, *self.slots[:slot])
        if kept is not None and all(kept is not other for other in others):
            return kept
        own = self.free()
        if kept is None:
            own.clear()
            own.length.fill(-1)
        else:
            own.copy(kept)
        return own
