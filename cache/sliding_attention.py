"""Sliding-window and chunked attention: keys and values in a ring of W + S slots, W the window and S the verify length.

Position p lives in slot p mod R. Which position a slot holds follows from the length alone, so nothing but the rows is kept,
and the ring stays right far past the window. A tentative block of S tokens overwrites only positions that no token from the
committed length on can see, so rolling back is only a smaller length here too.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from hybridge.cache.attention import AttentionLayer
from hybridge.cache.block import Block, CacheSizes
from hybridge.cache.kernels import Kernels, Visible


class SlidingAttentionLayer(AttentionLayer):
    """R = window + ``sizes.verify_len`` slots, copied by a snapshot.

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
        self.window, self.chunked, self.ring = window, chunked, window + sizes.verify_len
        self.add_committed("keys", self.ring, kv_heads, head_dim, dtype=sizes.dtype)
        self.add_committed("values", self.ring, kv_heads, value_dim or head_dim, dtype=sizes.dtype)

    def take(self, key: Tensor, value: Tensor, block: Block) -> tuple[Tensor, Tensor, Visible | None]:
        if block.length <= self.sizes.verify_len:
            self._write(key, value, block)
            return self.keys, self.values, self._visible(block, written=True)
        # A longer block may overwrite what its own first tokens still see: attend over the ring and the block side by side.
        keys, values = torch.cat([self.keys, key], dim=1), torch.cat([self.values, value], dim=1)
        self._fill(keys, values, block)
        return keys, values, self._visible(block, written=False)

    def seen(self, key: Tensor, value: Tensor, block: Block, length: int | Tensor) -> tuple[Tensor, Tensor]:
        rows, first = self.seen_sizes(block.length, length)
        at = torch.arange(rows) + first
        source = torch.where(at < length, torch.remainder(at, self.ring), at - length + self.ring)
        source = source.clamp(max=self.ring + block.length - 1)
        keys, values = torch.cat([self.keys, key], dim=1), torch.cat([self.values, value], dim=1)
        self._fill(keys, values, block)
        return keys.index_select(1, source), values.index_select(1, source)

    def seen_sizes(self, tokens: int, length: int | Tensor) -> tuple[int, int | Tensor]:
        if isinstance(length, int):
            before = min(length, self.window - 1)
            return before + tokens, length - before
        return self.window - 1 + tokens, (length - self.window + 1).clamp(min=0)

    def _write(self, key: Tensor, value: Tensor, block: Block) -> None:
        """Put a block of at most S tokens into its slots; slots of padding keep every bit."""
        slots = block.shared(("slots", self.ring), lambda: torch.remainder(block.positions, self.ring))
        real = block.shared("real rows", lambda: block.real[:, None, None])
        for buffer, rows in ((self.keys, key), (self.values, value)):
            kept = torch.where(real, rows, buffer.index_select(1, slots))
            self.kernels.write_ring(buffer, kept, slots)

    def _fill(self, keys: Tensor, values: Tensor, block: Block) -> None:
        """Fill each slot with the newest real position it can hold, from ring and block [B, R + T, G, ...] side by side."""
        source = block.shared(("source", self.ring), lambda: self._source(block))
        self.keys.copy_(keys.index_select(1, source))
        self.values.copy_(values.index_select(1, source))

    def _source(self, block: Block) -> Tensor:
        newest = held_by_slots(block.start + block.count - 1, self.ring)
        return torch.where(newest >= block.start, newest - block.start + self.ring, torch.arange(self.ring))

    def _visible(self, block: Block, *, written: bool) -> Visible:
        """What the block sees of the ring: with the block in it, or as it was before with the block appended."""
        return block.shared(("ring", self.ring, self.window, self.chunked, written), lambda: self._make_visible(block, written))

    def _make_visible(self, block: Block, written: bool) -> Visible:
        at = block.positions
        held = held_by_slots(block.start + block.length - 1 if written else block.start - 1, self.ring)
        if not written:
            held = torch.cat([held, at])
        first = at // self.window * self.window if self.chunked else (at - self.window + 1).clamp(min=0)
        return Visible(held=held, mask=(held <= at[:, None]) & (held >= first[:, None]))


def held_by_slots(last: Tensor, ring: int) -> Tensor:
    """The newest position up to ``last`` (int64 [1]) that each of ``ring`` slots can hold, int64 [ring]; < 0 for none."""
    # One ring more keeps the dividend from being negative: runtimes disagree on the sign of such a remainder.
    return last - torch.remainder(last + ring - torch.arange(ring), ring)
