"""The state of an ONNX artifact, in our own memory: rows by position are written in place, bounded states get new versions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hybridge.runtime.manifest import OnnxEntry, TensorEntry
from hybridge.runtime.onnx_graph import ort_value


class Buffers:
    """Contiguous tensors by name, and the same memory as onnxruntime's values."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.tensors = tensors
        self._values = {name: ort_value(tensor) for name, tensor in tensors.items()}

    @classmethod
    def zeros(cls, entries: Mapping[str, TensorEntry]) -> Buffers:
        """New ones, in pages that exist once they are written to."""
        return cls({name: torch.zeros(each.shape, dtype=getattr(torch, each.dtype)) for name, each in entries.items()})

    def first(self, tokens: int) -> Buffers:
        """The first so many of T tokens, where each is [1, T, …]; the same memory."""
        return Buffers({name: each[:, :tokens] for name, each in self.tensors.items()})

    def named(self, prefix: str) -> dict[str, Any]:
        """onnxruntime's values by the names that a graph has for them."""
        return {f"{prefix}{name}": value for name, value in self._values.items()}


class Version:
    """What a text left behind: its length, int64 [1], and the bounded states. Nobody writes it while it is referred to."""

    def __init__(self, bounded: Mapping[str, TensorEntry]) -> None:
        self.length = torch.zeros(1, dtype=torch.long)
        self.buffers = Buffers.zeros(bounded)

    def tensors(self) -> dict[str, Tensor]:
        return {"length": self.length, **{f"layers.{name}": each for name, each in self.buffers.tensors.items()}}

    def zero_(self) -> None:
        for tensor in self.tensors().values():
            tensor.zero_()

    def copy_(self, other: Version) -> None:
        theirs = other.tensors()
        for name, tensor in self.tensors().items():
            tensor.copy_(theirs[name])


@dataclass(frozen=True)
class StagedBlock:
    """So many tokens that were verified after a version, and wait for ``commit``."""

    after: Version
    tokens: int


class OnnxState:
    """now: the version that is committed; slots: the versions that snapshots refer to; rows: by position, for all of them.

    A snapshot copies nothing. Versions that nothing refers to are written again, so there are at most two more than slots.
    """

    def __init__(self, entry: OnnxEntry, slots: int) -> None:
        self.rows = Buffers.zeros({each.name: each for each in entry.states if each.kind == "positional"})
        self._bounded = {each.name: each for each in entry.bounded}
        self.now = Version(self._bounded)
        self.slots: list[Version | None] = [None] * slots
        self._versions = [self.now]

    @property
    def length(self) -> int:
        return int(self.now.length)

    def free(self) -> Version:
        """A version to write, which may hold anything."""
        for version in self._versions:
            if version is not self.now and all(version is not kept for kept in self.slots):
                return version
        self._versions.append(Version(self._bounded))
        return self._versions[-1]

    def forget_slots(self) -> None:
        """Rows from the committed length on are going to be written: slots that need them keep nothing any more."""
        self.slots = [kept if kept and int(kept.length) <= self.length else None for kept in self.slots]

    def clear(self) -> None:
        """Empty state and slots. Rows that the length does not reach are never read."""
        fresh = self.free()
        fresh.zero_()
        self.now = fresh
        self.slots = [None] * len(self.slots)

    def tensors(self) -> dict[str, Tensor]:
        """Everything by name, each in memory of its own; a slot of length -1 keeps nothing."""
        for slot in range(len(self.slots)):
            self.slots[slot] = self._own(slot)
        kept = {f"slots.{i}.{name}": each for i, slot in enumerate(self.slots) if slot for name, each in slot.tensors().items()}
        rows = {f"layers.{name}": each for name, each in self.rows.tensors.items()}
        return {**self.now.tensors(), **rows, **kept}

    def _own(self, slot: int) -> Version:
        """The version of a slot, a copy where something else refers to it too."""
        kept = self.slots[slot]
        others = (self.now, *self.slots[:slot])
        if kept is not None and all(kept is not other for other in others):
            return kept
        own = self.free()
        if kept is None:
            own.zero_()
            own.length.fill_(-1)
        else:
            own.copy_(kept)
        return own
