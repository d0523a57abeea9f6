"""Layers made of several, and layers with no state at all, behind the same protocol as every other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor, nn

from hybridge.cache.block import CacheSizes
from hybridge.cache.layers.layer import CacheLayer
from hybridge.cache.operations.kernels import Kernels


class CompositeLayer(CacheLayer):
    """A decoder layer with more than one state, say attention beside a state space: its named parts, in order."""

    def __init__(self, sizes: CacheSizes, kernels: Kernels, parts: Mapping[str, CacheLayer]) -> None:
        super().__init__(sizes, kernels)
        self.parts = nn.ModuleDict(dict(parts))

    @property
    def kind(self) -> str:  # type: ignore[override]  # of an instance here, because it names the parts
        return " + ".join(part.kind for part in self.leaves())

    def part(self, name: str) -> CacheLayer:
        return self.parts[name]  # type: ignore[return-value]  # a ModuleDict forgets what it holds

    def leaves(self) -> list[CacheLayer]:
        return [leaf for part in self.parts.values() for leaf in part.leaves()]  # type: ignore[operator]

    def commit(self, count: Tensor) -> None:
        for part in self.leaves():
            part.commit(count)

    def reset(self, when: Tensor) -> None:
        for part in self.leaves():
            part.reset(when)

    def write_slot(self, slot: Tensor, when: Tensor) -> None:
        for part in self.leaves():
            part.write_slot(slot, when)

    def read_slot(self, slot: Tensor, when: Tensor) -> None:
        for part in self.leaves():
            part.read_slot(slot, when)

    def bytes_by_use(self) -> Mapping[str, int]:
        uses = [part.bytes_by_use() for part in self.leaves()]
        return {use: sum(each[use] for each in uses) for use in ("state", "rollback", "slots")}


class StatelessLayer(CacheLayer):
    """A decoder layer that keeps nothing, say a block of experts only."""

    kind: ClassVar[str] = "stateless"
