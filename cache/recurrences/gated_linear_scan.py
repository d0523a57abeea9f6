r"""The gated linear scan of RG-LRU (RecurrentGemma): each channel fades and adds by itself.

For each channel:

    h <- exp(log_decay) h + x
    out = h

Source: De et al., "Griffin" (arXiv:2402.19427), section 2.4. **Identity step**: ``log_decay = 0`` and ``x = 0``. Its naive and
its fast form are those of ``diagonal_scan``.

Axes: B batch, T tokens, S staged tokens, C channels.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from hybridge.cache.block import Block
from hybridge.cache.recurrences.recurrence import Recurrence, accepted, real, replace, stage, swapped
from hybridge.cache.recurrences.selective_scan import diagonal_scan


class GatedScanStaged(NamedTuple):
    """A tentative block: log_decay and input [B, S, C]."""

    log_decay: Tensor
    input: Tensor


class GatedLinearScan(Recurrence):
    """Run and commit the scan by core operators; state [B, C]."""

    def run(self, log_decay: Tensor, x: Tensor, state: Tensor, staged: GatedScanStaged, block: Block) -> Tensor:
        """Run a block of log_decay and x [B, T, C]. Returns the state after each token, [B, T, C]."""
        log_decay, x = real(block, log_decay, x)
        stage(block, staged, log_decay, x)
        states = diagonal_scan(swapped(log_decay).exp(), swapped(x), state)
        if not block.tentative:
            state.copy_(states[..., -1])
        return swapped(states)

    def commit(self, state: Tensor, staged: GatedScanStaged, count: Tensor) -> None:
        """Accept the first ``count`` staged tokens."""
        log_decay, x = accepted(count, *staged)
        replace(state, diagonal_scan(swapped(log_decay).exp(), swapped(x), state)[..., -1], count)
