"""The attention of a drafter inside the model: a sequence of its own beside the model's layers."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from hybridge.cache.block import Block, CacheSizes
from hybridge.cache.layers.full_attention import FullAttentionLayer
from hybridge.cache.operations.kernels import Kernels


class DrafterAttentionLayer(FullAttentionLayer):
    """keys and values as in full attention, and drafted_length float32 [B, 1], the rows that count.

    The drafter reads what was committed later than the model does, and proposes on behind what it has read; so its length is
    its own. A snapshot copies it, and rows past it are not seen. As a float because the runtime's operator that writes slots
    takes no integers; lengths are exact up to 2^24.
    """

    kind: ClassVar[str] = "drafter_attention"

    drafted_length: Tensor

    def __init__(self, sizes: CacheSizes, kernels: Kernels, *, kv_heads: int, head_dim: int) -> None:
        super().__init__(sizes, kernels, kv_heads=kv_heads, head_dim=head_dim)
        self.add_committed("drafted_length", 1)

    def extend(self, tokens: int, count: Tensor, ahead: int) -> Block:
        """Return a block of which the first ``count`` (int64 [1]) count, and ``ahead`` more follow; none if it does not fit."""
        length = self.drafted_length[0].long()
        fits = (count >= 1) & (count <= tokens) & (length + count + ahead <= self.sizes.max_seq_len)
        start = torch.where(fits, length, self.sizes.max_seq_len)
        return Block(start=start, count=torch.where(fits, count, 0), length=tokens)

    def overwritten_slots(self, block: Block) -> Tensor:
        """Return bool [N]: snapshot slots that count rows that the block or draft tokens behind it overwrite; needs slots."""
        kept = self.get_buffer("drafted_length_slots").view(-1)
        return (kept > self.drafted_length[0]) & (block.count > 0)

    def close(self, block: Block) -> Tensor:
        """Count the block's rows. Returns the length int64 [1], or -1 where the block was refused."""
        length = self.drafted_length[0].long() + block.count
        self.drafted_length.copy_(length[None].to(self.drafted_length.dtype))
        return torch.where(block.count > 0, length, -1)


def step(block: Block, index: int) -> Block:
    """Return a block of one token behind the counted ones of ``block`` and ``index`` others: written there, never counted."""
    return Block(start=block.start + block.count + index, count=torch.ones_like(block.count), length=1)
