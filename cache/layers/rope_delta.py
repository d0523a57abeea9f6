"""Keep how far the rope positions of a text lie behind its length, for models that give a picture fewer positions than rows.

Qwen's multimodal rope has three axes. The rows of a picture share a position in time and differ in row and column, and the text
after the picture continues after the larger of its sides. Rows of keys, masks and rings go by length all the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from hybridge.cache.block import Block, CacheSizes
from hybridge.cache.layers.layer import CacheLayer
from hybridge.cache.operations.kernels import Kernels


class RopeDeltaLayer(CacheLayer):
    """rope_delta float32 [B, 1], the next rope position minus the length: 0 or less. A snapshot copies it.

    As a float because the runtime's operator that writes slots takes no integers; positions are exact up to 2^24.
    """

    kind: ClassVar[str] = "rope_delta"

    rope_delta: Tensor

    def __init__(self, sizes: CacheSizes, kernels: Kernels) -> None:
        super().__init__(sizes, kernels)
        self.add_committed("rope_delta", 1)

    def place(self, block: Block, grid: Tensor | None = None) -> Block:
        """Return the block with its rope positions: one after the other, or ``grid`` (int64 [3, T]) added to the first."""
        ahead = torch.arange(block.length) if grid is None else grid
        return replace(block, rope=block.start + self.rope_delta[0] + ahead)

    def allows(self, count: Tensor, advance: Tensor) -> Tensor:
        """Return bool [1]: ``count`` rows may move the position on by ``advance`` (both int64 [1])."""
        return (advance >= 0) & (self.rope_delta[0] + advance - count <= 0)

    def move(self, block: Block, advance: Tensor) -> None:
        """Let the rows of a block that was not refused take ``advance`` (int64 [1]) positions."""
        behind = torch.where(block.count > 0, advance - block.count, 0)
        self.rope_delta.copy_(self.rope_delta + behind[None])


def rope_delta_of(layers: Iterable[CacheLayer]) -> RopeDeltaLayer | None:
    """Return the layer among those of a cache; None for a model whose rope positions are its lengths."""
    return next((layer for layer in layers if isinstance(layer, RopeDeltaLayer)), None)
