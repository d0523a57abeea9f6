"""Keep the last inputs: the window of a short convolution (LFM2, Inkling), or a delay by one token (ZAYA's values)."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from hybridge.cache.block import Block, CacheSizes
from hybridge.cache.layers.layer import CacheLayer
from hybridge.cache.operations.kernels import Kernels
from hybridge.cache.recurrences.recurrence import stage
from hybridge.cache.recurrences.short_conv import ConvWindow, ShortConvolution
from hybridge.errors import CheckpointError


class ShortConvLayer(CacheLayer):
    """conv_state [B, W, C], W = conv kernel - 1, in ``dtype`` (``sizes.dtype`` by default).

    ``mix(x, block=...)`` takes the inputs [B, T, C] of the convolution, in that dtype, and returns its outputs [B, T, C].
    There is no other recurrence, so a commit only moves the window.
    """

    kind: ClassVar[str] = "short_conv"

    conv_state: Tensor
    staged_conv: Tensor
    convolution: ShortConvolution  # a mixer's

    def __init__(
        self, sizes: CacheSizes, kernels: Kernels, *, channels: int, conv_kernel: int, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__(sizes, kernels)
        if conv_kernel < 2:
            raise CheckpointError(
                f"config.json gives a short convolution a kernel of {conv_kernel}, expected 2 or more: "
                "a shorter one has no state. Check the kernel size in config.json."
            )
        self.conv = kernels.recurrence(ConvWindow)
        self.add_committed("conv_state", conv_kernel - 1, channels, dtype=dtype or sizes.dtype)
        self.add_staged("staged_conv", channels, dtype=dtype or sizes.dtype)

    def mix(self, x: Tensor, /, *, block: Block) -> Tensor:
        """Convolve the block, with the activation."""
        return self.conv.run(x, self.convolution, self.conv_state, self.staged_conv, block)

    def extend_window(self, x: Tensor, block: Block) -> Tensor:
        """Keep the block's inputs; return window and inputs [B, W + T, C], for taps that depend on the token."""
        return self.conv.extend(x, self.conv_state, self.staged_conv, block)

    def commit(self, count: Tensor) -> None:
        self.conv.commit(self.conv_state, self.staged_conv, count)


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
        stage(block, (self.staged_input,), x)
        if not block.tentative:
            # A select, because inputs of padding or of a refused block may be NaN.
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
