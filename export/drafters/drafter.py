"""What every drafter inside an artifact does: read what was committed, and propose behind it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from hybridge.cache.block import Block
from hybridge.cache.hybrid_cache import HybridCache
from hybridge.cache.layers.drafter import DrafterLengthLayer
from hybridge.export.adaptation.families.family import Unregistered
from hybridge.runtime.artifacts.drafter_description import DrafterDescription

Answers = tuple[Tensor, ...]
"""Draft tokens int64 [1, N], -1 where refused, and their chances float32 [1, N]; of a drafter that samples also the scores
float32 [1, N, C] and, where C is not the whole vocabulary, the candidates int64 [1, N, C] that they are of."""


@dataclass(frozen=True)
class Target:
    """What a drafter shares with its target.

    decoder: the text model; logits: the target's own, of hidden states after its final norm. embed: rows of its embedding for
    tokens [1, T], without what the family multiplies them with; head: its output layer alone.
    """

    decoder: Any
    logits: Callable[[Tensor], Tensor]
    embed: Callable[[Tensor], Tensor]
    head: Any


class ArtifactDrafter(nn.Module):
    """A drafter whose length is the cache's layer ``place``. width: of the hidden states that it reads."""

    width: int

    def __init__(self, cache: HybridCache, place: int, description: DrafterDescription) -> None:
        super().__init__()
        self._cache, self.place, self.description = Unregistered(cache), place, description

    @property
    def length(self) -> DrafterLengthLayer:
        """Return the state of how much was read."""
        return self._cache.cache.part(self.place, DrafterLengthLayer)

    def draws(self, count: int) -> tuple[Tensor, ...]:
        """Return example inputs of what decides the draws of ``count`` draft tokens; none where it cannot sample."""
        return ()

    def read(self, target: Target, hidden: Tensor, tokens: Tensor, count: Tensor) -> Tensor:
        """Take in the first ``count`` pairs of hidden [1, T, F] and the tokens [1, T] after each.

        Returns the length int64 [1] afterwards, -1 where they do not fit.
        """
        raise NotImplementedError

    def draft(self, target: Target, guesses: int, hidden: Tensor, tokens: Tensor, count: Tensor, *draws: Tensor) -> Answers:
        """Take in pairs likewise, and propose ``guesses`` tokens behind the last one."""
        raise NotImplementedError

    def close(self, block: Block) -> Tensor:
        """Account for a block that was read. Returns the length int64 [1], -1 where it was refused."""
        cache = self._cache.cache
        if cache.sizes.snapshot_slots:
            cache.forget_slots(self.length.overwritten_slots(block))
        length = self.length.close(block)
        cache.count(block.count > 0)
        return length
