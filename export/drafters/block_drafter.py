"""Block drafters as an artifact has them: DFlash, DFlash 2 and DSpark over the target's cache, embedding and head.

The last token of the text and masks behind it go through a small model at once, which sees what the target saw of every
committed position. Sources: DFlash arXiv:2602.06036; z-lab/dflash; mlx-vlm ``speculative/drafters/dspark``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hybridge.cache.block import Block
from hybridge.cache.hybrid_cache import HybridCache
from hybridge.cache.layers.drafter import following
from hybridge.export.adaptation.families.family import Unregistered
from hybridge.export.drafters.block_weights import BlockWeights
from hybridge.export.drafters.drafter import Answers, ArtifactDrafter, Target
from hybridge.export.drafters.tails import Chooser, Draws, Guesses
from hybridge.runtime.artifacts.drafter_description import DrafterDescription


class BlockDrafter(ArtifactDrafter):
    """The drafter over the cache; its length is the cache's layer ``place``, its layers come behind it."""

    def __init__(self, weights: BlockWeights, cache: HybridCache, place: int, description: DrafterDescription) -> None:
        super().__init__(cache, place, description)
        self.weights, self.state = weights, Unregistered(cache)
        config = weights.config
        self.width = len(config.target_layer_ids) * config.hidden_size

    def draws(self, count: int) -> tuple[Tensor, ...]:
        return torch.zeros(1, count), torch.zeros(1)

    def read(self, target: Target, hidden: Tensor, tokens: Tensor, count: Tensor) -> Tensor:
        block = self.length.extend(tokens.shape[1], count)
        self._read(hidden, block)
        return self.close(block)

    def draft(self, target: Target, guesses: int, hidden: Tensor, tokens: Tensor, count: Tensor, *draws: Tensor) -> Answers:
        block = self.length.extend(tokens.shape[1], count)
        self._read(hidden, block)
        last = tokens.index_select(1, (block.count - 1).clamp(min=0))
        found = self._guess(target, last, following(block, guesses + self.weights.config.first_guess), guesses, Draws(*draws))
        fits = self.close(block) >= 0
        answers = torch.where(fits, found.tokens, -1), found.chances, found.scores
        return answers if found.candidates is None else (*answers, found.candidates)

    def _read(self, hidden: Tensor, block: Block) -> None:
        # A select: padding may be NaN, and in a value not even a weight of 0 would hide that.
        taps = torch.where(block.real[:, None], hidden, 0.0)
        angles = self.weights.rope.angles(block.positions)
        self.weights.backbone.read(self.state.cache, self.place + 1, taps, block, angles)

    def _guess(self, target: Target, last: Tensor, block: Block, guesses: int, draws: Draws) -> Guesses:
        """Run ``last`` [1, 1] and masks as ``block``; the tail's guesses."""
        config, masks = self.weights.config, block.length - 1
        tokens = torch.cat([last, torch.full((1, masks), config.mask_token)], dim=1) if masks else last
        x = target.embed(tokens) * config.embedding_scale
        hidden = self.weights.backbone.run(
            self.state.cache, self.place + 1, x, block, self.weights.rope.angles(block.positions)
        )
        hidden = hidden[:, block.length - guesses :]
        tail: Any = self.weights.tail
        out: Guesses = tail(hidden, self._logits(target, hidden), last, Chooser(self.length.kernels, draws, self.weights.ids))
        return out

    def _logits(self, target: Target, hidden: Tensor) -> Tensor:
        config, own = self.weights.config, self.weights.head
        logits: Tensor = (target.head if own is None else own)(hidden) * config.output_multiplier
        return logits if config.softcap is None else (logits / config.softcap).tanh() * config.softcap
