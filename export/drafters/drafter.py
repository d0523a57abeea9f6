"""What every drafter inside an artifact does: read what was committed, and propose behind it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hybridge.cache.block import Block
from hybridge.cache.errors import UsageError
from hybridge.cache.hybrid_cache import HybridCache
from hybridge.cache.layers.drafter import DrafterLengthLayer
from hybridge.export.model.families.family import Unregistered
from hybridge.export.source.checkpoint import LoadedModel
from hybridge.runtime.artifacts.options import DrafterDescription

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


# The tokens that a drafter may propose, where these are not all: its target's output layer is its largest read.
#
# Most of a large vocabulary is rare, and what is not among the draft tokens is only never proposed. Source: FR-Spec,
# arXiv:2502.14856.


DraftVocabulary = int | Path
"""So many of the first tokens, which are the most frequent ones of most tokenizers; or a text, whose tokens they are."""

LARGEST_TEXT = 64 << 20
"""Bytes: the counts of rarer tokens say nothing that matters."""


def draft_ids(checkpoint: LoadedModel, asked: DraftVocabulary) -> Tensor:
    """Return ids int64 [n] in order, of which the tokens that end a text are always some.

    Raises UsageError where there are none or as many as there are tokens, or where the text cannot be read.
    """
    ids = {*range(asked)} if isinstance(asked, int) else _of_text(checkpoint, asked)
    if not 1 <= len(ids) < checkpoint.vocab_size:
        raise UsageError(
            f"--draft-vocab {asked} is {len(ids)} tokens, but should be some of the model's "
            f"{checkpoint.vocab_size}; leave it out for all of them."
        )
    return torch.tensor(sorted({*ids, *checkpoint.eos_ids}))


def _of_text(checkpoint: LoadedModel, path: Path) -> set[int]:
    tokenizer = checkpoint.source.tokenizer.tokenizer
    if tokenizer is None:
        raise UsageError(f"--draft-vocab {path} needs the model's tokenizer, and it has none; give a number of tokens.")
    try:
        with path.open("rb") as file:
            text = file.read(LARGEST_TEXT).decode("utf-8", errors="ignore")
    except OSError as error:
        raise UsageError(
            f"--draft-vocab {path} cannot be read ({error.strerror}); give a text, or a number of tokens."
        ) from None
    counts = Counter(token for line in text.splitlines(keepends=True) for token in tokenizer.encode(line).ids)
    return {token for token in counts if token < checkpoint.vocab_size}
