"""The state of a real-gated linear recurrent unit (RecurrentGemma): a conv window, and a number for each channel."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from hybridge.cache.block import Block, CacheSizes
from hybridge.cache.layers.layer import CacheLayer
from hybridge.cache.operations.conv_window import ShortConvolution
from hybridge.cache.operations.kernels import Kernels


class RgLruLayer(CacheLayer):
    """conv_state [B, W, C] and recurrent_state [B, C], the latter float32; C channels, W = conv kernel - 1.

    ``convolved(x, block=...)`` takes the convolution's inputs [B, T, C] in and returns its outputs, for the mixer to gate;
    ``mix(log_decay, x, block=...)`` takes [B, T, C] twice, x gated and normalized, and returns [B, T, C].
    """

    kind: ClassVar[str] = "rg_lru"

    conv_state: Tensor
    recurrent_state: Tensor
    staged_conv: Tensor
    staged_log_decay: Tensor
    staged_input: Tensor
    convolution: ShortConvolution  # a mixer's

    def __init__(self, sizes: CacheSizes, kernels: Kernels, *, channels: int, conv_kernel: int) -> None:
        super().__init__(sizes, kernels)
        self.add_committed("conv_state", conv_kernel - 1, channels, dtype=sizes.dtype)
        self.add_committed("recurrent_state", channels)
        self.add_staged("staged_conv", channels, dtype=sizes.dtype)
        self.add_staged("staged_log_decay", channels)
        self.add_staged("staged_input", channels)

    def convolved(self, x: Tensor, *, block: Block) -> Tensor:
        """Convolve the block."""
        return self.kernels.convolve(x, self.convolution, self.conv_state, self.staged_conv, block)

    def mix(self, log_decay: Tensor, x: Tensor, *, block: Block) -> Tensor:
        """Return the states after each token."""
        return self.kernels.fading_sum(log_decay, x, self.recurrent_state, (self.staged_log_decay, self.staged_input), block)

    def commit(self, count: Tensor) -> None:
        self.kernels.commit_fading_sum(self.recurrent_state, (self.staged_log_decay, self.staged_input), count)
        self.kernels.shift(self.conv_state, self.staged_conv, count)
