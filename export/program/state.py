"""Hold the model and its cache: the one holder that all methods wrap, because buffers are matched by qualified name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from hybridge.cache.block import Block, Seeing
from hybridge.cache.hybrid_cache import HybridCache
from hybridge.cache.layers.rope_delta import RopeDeltaLayer, rope_delta_of
from hybridge.export.drafters.drafter import ArtifactDrafter, TargetModel
from hybridge.export.model.adapt import AdaptedModel
from hybridge.export.quantize.bits import table_factor

Outputs = Tensor | tuple[Tensor, ...]


class State(nn.Module):
    """The model and its cache, the one holder that every method wraps."""

    def __init__(
        self,
        model: PreTrainedModel,
        cache: HybridCache,
        tap_layers: Sequence[int] = (),
        drafter: ArtifactDrafter | None = None,
        vision: nn.Module | None = None,
    ) -> None:
        super().__init__()
        embedding = model.get_input_embeddings()
        self.model = AdaptedModel(model, cache, tap_layers)
        self.cache = cache
        self.drafter = drafter
        self.vision = vision
        self._shared = Shared(embedding, model.get_output_embeddings()) if drafter else None
        self.requires_grad_(False)

    @property
    def rope(self) -> RopeDeltaLayer | None:
        """Return the layer that keeps rope positions, if they are not those of the tokens."""
        return rope_delta_of(self.cache.cache_layers())

    def hidden(self, tokens: Tensor, block: Block, grid: Tensor | None = None) -> Tensor:
        """Run tokens [1, T], or embeddings [1, T, hidden], as ``block`` and return hidden states [1, T, hidden].

        grid: int64 [3, T], rope positions from the text's next one on, if they do not follow each other.
        """
        self.cache.block = block if self.rope is None else self.rope.place(block, grid)
        hidden = self.model.hidden(tokens)
        self.cache.close(block)
        return hidden

    def extend(self, tokens: Tensor, count: Tensor, bidirectional: Seeing = None) -> tuple[Tensor, Tensor]:
        """Commit the first ``count`` of tokens [1, T]; return the last one's logits, NaN if they do not fit, and all hidden.

        Embeddings [1, T, hidden] may take the place of tokens. bidirectional: where they see each other.
        """
        block = replace(self.cache.extend(tokens.shape[1], count), bidirectional=bidirectional)
        hidden = self.hidden(tokens, block)
        return self.last_logits(hidden, block), hidden

    def extend_by_picture(self, rows: Tensor, grid: Tensor, advance: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        """Commit the first ``count`` of embeddings [1, T, hidden] likewise, at the rope positions of ``grid`` (int64 [3, T]).

        The text after them continues ``advance`` (int64 [1]) positions on.
        """
        assert self.rope is not None
        count = torch.where(self.rope.allows(count, advance), count, 0)
        block = self.cache.extend(rows.shape[1], count)
        hidden = self.hidden(rows, block, grid)
        self.rope.move(block, advance)
        return self.last_logits(hidden, block), hidden

    def last_logits(self, hidden: Tensor, block: Block) -> Tensor:
        """Return the logits [1, 1, V] after the last token that counts, NaN for a refused block."""
        last = hidden.index_select(1, (block.count - 1).clamp(min=0))
        # Select before the head, because the vocabulary is hundreds of times wider.
        return self.model.logits(torch.where(block.count > 0, last, float("nan")))

    @property
    def target(self) -> TargetModel:
        """Return the parts of the model that the drafter shares."""
        shared = self._shared
        assert shared is not None
        few = self.drafter.head if self.drafter is not None else None
        logits = partial(self.model.logits, layer=few)
        return TargetModel(decoder=self.model.decoder, logits=logits, embed=shared.embed, head=few or shared.head)

    def tapped(self, logits: Tensor, hidden: Tensor) -> Outputs:
        """Return logits, with the tapped hidden states of the run that ended with ``hidden`` if there are taps."""
        return (logits, self.model.taps.collect(hidden)) if self.model.taps.places else logits


class Shared:
    """The embedding's rows as they are stored, and the head."""

    def __init__(self, embedding: Any, head: Any) -> None:
        self.embedding, self.head = embedding, head
        self.factor = getattr(embedding, "factor", None) or table_factor(embedding)

    def embed(self, tokens: Tensor) -> Tensor:
        """Return rows [1, T, H] of tokens [1, T]."""
        if self.factor is None:  # more than a table (Inkling's norm), which is then never packed
            return F.embedding(tokens, self.embedding.weight)
        rows: Tensor = self.embedding(tokens)
        return rows if self.factor == 1.0 else rows * (1.0 / self.factor)
