"""The state of a Mamba mixer (the first version): a conv window, and a vector for each channel."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from torch import Tensor

from hybridge.cache.block import Block, CacheSizes
from hybridge.cache.layers.layer import CacheLayer
from hybridge.cache.operations.conv_window import ShortConvolution
from hybridge.cache.operations.kernels import Kernels
from hybridge.cache.recurrences.state_space import ScanStaged, Selected


class MambaLayer(CacheLayer):
    """conv_state [B, W, C] and recurrent_state [B, C, N] ([B, H, P, N] of several heads), the latter float32.

    C = H P channels in H heads (1 but for Zamba), W = conv kernel - 1, N state dim.

    ``convolved(x, block=...)`` takes the convolution's inputs [B, T, C] in and returns its outputs, for the mixer to project;
    ``mix(selected, block=...)`` then returns [B, T, C]. ``rate`` [C, N] (A, negative) and ``skip`` [C] (D) are the mixer's,
    in float32.
    """

    kind: ClassVar[str] = "mamba"

    conv_state: Tensor
    recurrent_state: Tensor
    staged_conv: Tensor
    convolution: ShortConvolution
    rate: Callable[[], Tensor]
    skip: Callable[[], Tensor]

    def __init__(
        self, sizes: CacheSizes, kernels: Kernels, *, channels: int, state_dim: int, conv_kernel: int, heads: int = 1
    ) -> None:
        super().__init__(sizes, kernels)
        by_head = (channels,) if heads == 1 else (heads, channels // heads)
        self.add_committed("conv_state", conv_kernel - 1, channels, dtype=sizes.dtype)
        self.add_committed("recurrent_state", *by_head, state_dim)
        self.add_staged("staged_conv", channels, dtype=sizes.dtype)
        self.add_staged("staged_x", channels)
        self.add_staged("staged_steps", channels)
        self.add_staged("staged_key", heads, state_dim)

    def convolved(self, x: Tensor, *, block: Block) -> Tensor:
        """Convolve the block, x [B, T, C]."""
        return self.kernels.convolve(x, self.convolution, self.conv_state, self.staged_conv, block)

    def mix(self, selected: Selected, *, block: Block) -> Tensor:
        """Scan what the mixer selected."""
        return self.kernels.selective_scan(
            selected, self.rate(), self.skip(), self.recurrent_state, self.staged_as(ScanStaged), block
        )

    def commit(self, count: Tensor) -> None:
        self.kernels.commit_selective_scan(self.rate(), self.recurrent_state, self.staged_as(ScanStaged), count)
        self.kernels.shift(self.conv_state, self.staged_conv, count)
