"""Keep keys and values of sliding-window and chunked attention in a ring of W + S slots: W the window, S the verify length.

A drafter that looks beyond the window has the ring that many slots longer.

Position p lives in slot p mod R. Which position a slot holds follows from the length alone, so nothing but the rows is kept,
and the ring stays right far past the window. A tentative block of S tokens overwrites only positions that no token from the
committed length on can see, so rolling back is only a smaller length here too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from hybridge.cache.block import Block, CacheSizes
from hybridge.cache.layers.attention import AttentionLayer
from hybridge.cache.operations.kernels import Kernels, Visible
from hybridge.cache.operations.ring import Ring


class SlidingAttentionLayer(AttentionLayer):
    """R = window + ``sizes.before_window`` + ``sizes.verify_len`` slots, copied by a snapshot.

    window counts the token itself: a token at position p sees p - window + 1 to p. ``chunked`` is Llama 4's attention, where
    it sees its own chunk of ``window`` positions instead: ``p // window * window`` to p.
    """

    kind: ClassVar[str] = "sliding_attention"
    window: int

    def __init__(
        self,
        sizes: CacheSizes,
        kernels: Kernels,
        *,
        kv_heads: int,
        head_dim: int,
        window: int,
        value_dim: int | None = None,
        chunked: bool = False,
    ) -> None:
        super().__init__(sizes, kernels)
        self.window = window
        seen = window + sizes.before_window
        self.ring = Ring(size=seen + sizes.verify_len, window=window, chunked=chunked)
        self.drafter_ring = replace(self.ring, window=seen)
        self.add_committed("keys", self.ring.size, kv_heads, head_dim, dtype=sizes.dtype)
        self.add_committed("values", self.ring.size, kv_heads, value_dim or head_dim, dtype=sizes.dtype)

    def update(self, key: Tensor, value: Tensor, block: Block) -> tuple[Tensor, Tensor, Visible | None]:
        keys, values = self.keys, self.values
        if block.is_longer_than(self.sizes.verify_len):
            # A longer block may overwrite what its own first tokens still see: attend over the ring and the block side by side.
            keys, values = torch.cat([keys, key], dim=1), torch.cat([values, value], dim=1)
        self._write(key, value, block)
        return keys, values, self._visible(block, keys.shape[1], self.ring)

    def visible_keys(self, key: Tensor, value: Tensor, block: Block, length: int | Tensor) -> tuple[Tensor, Tensor]:
        rows, first = self.visible_sizes(block.length, length)
        at, ring = torch.arange(rows) + first, self.ring.size
        source = torch.where(at < length, torch.remainder(at, ring), at - length + ring)
        source = source.clamp(max=ring + block.length - 1)
        keys, values = torch.cat([self.keys, key], dim=1), torch.cat([self.values, value], dim=1)
        self._write(key, value, block)
        return keys.index_select(1, source), values.index_select(1, source)

    def visible_sizes(self, tokens: int, length: int | Tensor) -> tuple[int, int | Tensor]:
        if isinstance(length, int):
            before = min(length, self.window - 1)
            return before + tokens, length - before
        return self.window - 1 + tokens, (length - self.window + 1).clamp(min=0)

    def past_mask(self, block: Block) -> Visible:
        return self._visible(block, self.drafter_ring.size, self.drafter_ring)

    def _write(self, key: Tensor, value: Tensor, block: Block) -> None:
        self.kernels.write_window(self.keys, key, block)
        self.kernels.write_window(self.values, value, block)

    def _visible(self, block: Block, rows: int, ring: Ring) -> Visible:
        """Return what the block sees of the ring: with the block in it, or as it was before with the block appended."""

        def make() -> Visible:
            held = ring.held(block, rows)
            # Runtimes compute a causal mask of the ring themselves.
            return Visible(held=held, mask=ring.mask(block, held), ring=None if block.bidirectional else ring)

        # Not by the number of rows, which is a symbol while a block of any length is exported.
        return block.shared((ring, rows == ring.size), make)
