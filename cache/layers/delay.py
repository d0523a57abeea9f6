"""The state of a delay by one token (ZAYA's values): the last input."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from hybridge.cache.block import Block, CacheSizes
from hybridge.cache.layers.layer import CacheLayer
from hybridge.cache.operations.core_recurrences import stage
from hybridge.cache.operations.kernels import Kernels


class DelayLayer(CacheLayer):
    """recurrent_state [B, C], in ``sizes.dtype`` because it is an input, not a sum of many.

    ``mix(x, block=...)`` takes [B, T, C] and returns [B, T, C], at each token the input of the one before: zeros at the
    first. The identity step is to keep the input that is there. Source: transformers 5.23 ``ZayaCCAProjection``.
    """

    kind: ClassVar[str] = "delay"

    recurrent_state: Tensor
    staged_input: Tensor

    def __init__(self, sizes: CacheSizes, kernels: Kernels, *, channels: int) -> None:
        super().__init__(sizes, kernels)
        self.add_committed("recurrent_state", channels, dtype=sizes.dtype)
        self.add_staged("staged_input", channels, dtype=sizes.dtype)

    def mix(self, x: Tensor, /, *, block: Block) -> Tensor:
        window = torch.cat([self.recurrent_state.unsqueeze(1), x], dim=1)
        if block.tentative:
            stage(self.staged_input, x)
        else:
            # A select: inputs of padding or of a refused block, NaN perhaps, are not looked at.
            self.recurrent_state.copy_(window.index_select(1, block.count).squeeze(1))
        return window[:, :-1]

    def commit(self, count: Tensor) -> None:
        window = torch.cat([self.recurrent_state.unsqueeze(1), self.staged_input], dim=1)
        self.recurrent_state.copy_(window.index_select(1, count).squeeze(1))


def delay_naive(x: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
    """Compute one token after the other: x [B, T, C] and last [B, C] to the outputs [B, T, C] and the new last."""
    outputs = []
    for t in range(x.shape[1]):
        outputs.append(last)
        last = x[:, t]
    return torch.stack(outputs, dim=1), last
