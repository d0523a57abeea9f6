"""Compute with a ring of rows for a window: position p is in row p mod R, so the length tells which position a row holds."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hybridge.cache.block import Block


@dataclass(frozen=True, kw_only=True)
class Ring:
    """size: R. window: the number of positions that a token sees, itself included; if ``chunked``, those of its own chunk."""

    size: int
    window: int
    chunked: bool = False

    def held(self, block: Block, rows: int) -> Tensor:
        """Return int64 [rows], the position that each row holds, < 0 for none.

        The ring has the block in it; where ``rows`` is larger than the ring, it is as before and the block's rows follow it.
        """
        if rows == self.size:
            return held_by_slots(block.start + block.length - 1, self.size)
        return torch.cat([held_by_slots(block.start - 1, self.size), block.positions])

    def mask(self, block: Block, held: Tensor) -> Tensor:
        """Return bool [T, rows], which rows each token sees."""
        at = block.positions
        first = at // self.window * self.window if self.chunked else (at - self.window + 1).clamp(min=0)
        return (held <= block.last_seen[:, None]) & (held >= first[:, None])


def held_by_slots(last: Tensor, ring: int) -> Tensor:
    """Return the newest position up to ``last`` (int64 [1]) that each of ``ring`` slots can hold, int64 [ring]; < 0: none."""
    # One ring more keeps the dividend from being negative: runtimes disagree on the sign of such a remainder.
    return last - torch.remainder(last + ring - torch.arange(ring), ring)


def newest_rows(block: Block, ring: int) -> Tensor:
    """Return int64 [ring]: what each slot holds with the block's real tokens in it, as an index into ring and block."""
    newest = held_by_slots(block.start + block.count - 1, ring)
    return torch.where(newest >= block.start, newest - block.start + ring, torch.arange(ring))
