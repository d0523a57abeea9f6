"""A bias of attention scores by distance, which each query makes for itself (Inkling)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hybridge.cache.block import Block


def relative_bias(profiles: Tensor, block: Block) -> Callable[[Tensor], Tensor]:
    """Return ``Scoring.bias`` of profiles [B, H, T, E + 1]: what a query adds to a key 0 to E - 1 positions back, and farther.

    Source: transformers 5.23 ``InklingRelativeLogits``, which adds nothing to keys farther back.
    """
    T, length = profiles.shape[-2:]

    def bias(held: Tensor) -> Tensor:
        # Layers of equal caches see one and the same tensor.
        source = block.shared(("profile", length), lambda: _source(block, held, length), of=held)
        # One flat index on one dimension, the same for every head: a gather would need one the size of all scores.
        by_key: Tensor = profiles.flatten(2).index_select(2, source).unflatten(2, (T, -1))
        return by_key

    return bias


def _source(block: Block, held: Tensor, length: int) -> Tensor:
    """Return where the bias of each pair lies in the flattened profiles, int64 [T * R]."""
    distance = (block.positions[:, None] - held).clamp(0, length - 1)  # negative ones are not visible
    return (torch.arange(block.length)[:, None] * length + distance).flatten()
