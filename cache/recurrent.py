"""What all recurrent layers have in common: a block's small inputs are staged, and a commit replays them.

``verify`` stages the inputs of the recurrence (what goes into the conv, and the gates) and leaves the state alone; ``commit``
advances the state by the accepted ones. No second forward, no copy of the state for each token.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from hybridge.cache.block import Block
from hybridge.cache.layer import CacheLayer

States = Mapping[str, Tensor]


class RecurrentLayer(CacheLayer):
    """A layer whose state after a block follows from its inputs, each [B, ..., T] with time last.

    ``prepare`` makes of them what is staged, in order, and then what only reads the state (a query); ``advance`` gets the
    latter from ``mix`` and not from ``commit``.

    **Identity**: ``advance`` must leave the recurrent state unchanged at a token whose gates are all zero (log decay 0, beta
    0, dt 0), whatever finite numbers its other inputs are, and take its conv windows with ``window_after(..., count)``.
    """

    def prepare(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """What a commit need not compute again, of inputs [B, ..., T]: they themselves where that is as cheap."""
        return inputs

    def advance(self, inputs: tuple[Tensor, ...], count: Tensor) -> tuple[Tensor, States]:
        """Outputs of T tokens, and the states after the first ``count`` (int64 [1]) of them; changes nothing itself."""
        raise NotImplementedError

    def mix(self, *inputs: Tensor, block: Block) -> Tensor:
        """Run a block over ``inputs``; returns what ``advance`` puts out."""
        if block.tentative:
            prepared = self.prepare(inputs)
            for name, each in zip(self.staged, prepared, strict=False):
                self.stage(name, each)
            return self.advance(prepared, block.count)[0]
        # A refused block has seen rows that nothing was written to: its inputs may be NaN, and NaN * 0 is NaN.
        real = tuple(torch.where(block.real, each, 0.0) for each in inputs)
        out, states = self.advance(self.prepare(real), block.count)
        for name, state in states.items():
            self.get_buffer(name).copy_(state)
        return out

    def commit(self, count: Tensor) -> None:
        accepted = torch.arange(self.sizes.verify_len) < count
        staged = ((name, self.get_buffer(name)) for name in self.staged)
        inputs = tuple(torch.where(accepted, each, 0.0) if name in self.gates else each for name, each in staged)
        for name, state in self.advance(inputs, count)[1].items():
            buffer = self.get_buffer(name)
            # Identity steps keep every value, but -0.0 + 0.0 is 0.0, and without a block the inputs may be NaN: the select
            # keeps every bit.
            buffer.copy_(torch.where(count > 0, state, buffer))
