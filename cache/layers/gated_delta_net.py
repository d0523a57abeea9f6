"""The state of a gated delta net and of Kimi delta attention: a conv window and a matrix for each head."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from hybridge.cache.block import Block, CacheSizes
from hybridge.cache.layers.layer import CacheLayer
from hybridge.cache.operations.conv_window import ShortConvolution
from hybridge.cache.operations.kernels import Kernels
from hybridge.cache.recurrences.delta_gates import DeltaGates, DeltaStaged


class GatedDeltaNetLayer(CacheLayer):
    """conv_state [B, W, C] and recurrent_state [B, H, K, V], the latter float32.

    C = 2 Hk K + H V channels (query, key, value), W = conv kernel - 1, Hk key heads, H value heads. ``by_channel`` says
    whether each channel of a key fades by itself.

    ``mix(x, gates, block=...)`` takes the convolution's inputs [B, T, C] and returns [B, T, H, V].
    """

    kind: ClassVar[str] = "gated_delta_net"

    conv_state: Tensor
    recurrent_state: Tensor
    staged_conv: Tensor
    convolution: ShortConvolution  # a mixer's

    def __init__(
        self,
        sizes: CacheSizes,
        kernels: Kernels,
        *,
        key_heads: int,
        value_heads: int,
        key_dim: int,
        value_dim: int,
        conv_kernel: int,
        by_channel: bool = False,
    ) -> None:
        super().__init__(sizes, kernels)
        channels = 2 * key_heads * key_dim + value_heads * value_dim
        self.add_committed("conv_state", conv_kernel - 1, channels, dtype=sizes.dtype)
        self.add_committed("recurrent_state", value_heads, key_dim, value_dim)
        self.add_staged("staged_conv", channels, dtype=sizes.dtype)
        self.add_staged("staged_key", key_heads, key_dim, dtype=sizes.dtype)
        self.add_staged("staged_value", value_heads, value_dim, dtype=sizes.dtype)
        self.add_staged("staged_log_decay", value_heads, *([key_dim] if by_channel else []))
        self.add_staged("staged_beta", value_heads)

    def mix(self, x: Tensor, gates: DeltaGates, *, block: Block) -> Tensor:
        mixed = self.kernels.convolve(x, self.convolution, self.conv_state, self.staged_conv, block)
        return self.kernels.delta_rule(mixed, gates, self.recurrent_state, self.staged_as(DeltaStaged), block)

    def commit(self, count: Tensor) -> None:
        self.kernels.commit_delta_rule(self.recurrent_state, self.staged_as(DeltaStaged), count)
        self.kernels.shift(self.conv_state, self.staged_conv, count)


class KimiDeltaAttentionLayer(GatedDeltaNetLayer):
    """conv_state [B, W, 3 H D] of query, key and value, and recurrent_state [B, H, D, D], the latter float32.

    H heads, D head dim, W = conv kernel - 1. ``mix`` takes inputs [B, T, 3 H D] and returns [B, T, H, D].
    """

    kind: ClassVar[str] = "kimi_delta_attention"

    def __init__(self, sizes: CacheSizes, kernels: Kernels, *, heads: int, head_dim: int, conv_kernel: int) -> None:
        super().__init__(
            sizes,
            kernels,
            key_heads=heads,
            value_heads=heads,
            key_dim=head_dim,
            value_dim=head_dim,
            conv_kernel=conv_kernel,
            by_channel=True,
        )
