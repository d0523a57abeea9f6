"""The state of a Mamba-2 mixer: a conv window and a matrix for each head."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from torch import Tensor

from hybridge.cache.block import Block, CacheSizes
from hybridge.cache.layers.layer import CacheLayer
from hybridge.cache.operations.conv_window import ShortConvolution
from hybridge.cache.operations.kernels import Kernels
from hybridge.cache.recurrences.state_space import LinearAttention, LinearStaged, StepSize


class Mamba2Layer(CacheLayer):
    """conv_state [B, W, C] and recurrent_state [B, H, P, N], the latter float32.

    C = H P + 2 G N channels (x, B, C), W = conv kernel - 1, H heads of dim P, G groups with a state of N each.

    ``mix(x, steps, block=..., start=...)`` takes the convolution's inputs, C channels of [B, T, X] from ``start`` on, and
    returns [B, T, H P]. ``weights`` are the mixer's.
    """

    kind: ClassVar[str] = "mamba2"

    conv_state: Tensor
    recurrent_state: Tensor
    staged_conv: Tensor
    convolution: ShortConvolution
    weights: Callable[[], LinearAttention]

    def __init__(
        self, sizes: CacheSizes, kernels: Kernels, *, heads: int, head_dim: int, state_dim: int, groups: int, conv_kernel: int
    ) -> None:
        super().__init__(sizes, kernels)
        self.groups = groups
        channels = heads * head_dim + 2 * groups * state_dim
        self.add_committed("conv_state", conv_kernel - 1, channels, dtype=sizes.dtype)
        self.add_committed("recurrent_state", heads, head_dim, state_dim)
        self.add_staged("staged_conv", channels, dtype=sizes.dtype)
        self.add_staged("staged_mixed", channels, dtype=sizes.dtype)
        self.add_staged("staged_steps", heads)

    def mix(self, x: Tensor, steps: StepSize, *, block: Block, start: int) -> Tensor:
        mixed = self.kernels.convolve(x, self.convolution, self.conv_state, self.staged_conv, block, start)
        return self.kernels.linear_attention(
            mixed, steps, self.weights(), self.recurrent_state, self.staged_as(LinearStaged), block
        )

    def commit(self, count: Tensor) -> None:
        self.kernels.commit_linear_attention(self.weights(), self.recurrent_state, self.staged_as(LinearStaged), count)
        self.kernels.shift(self.conv_state, self.staged_conv, count)
