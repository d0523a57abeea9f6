"""The state of a gated delta net (Qwen3-Next, Qwen3.5): a conv window and a matrix for each head."""

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
    staged_key: Tensor
    staged_value: Tensor
    staged_log_decay: Tensor
    staged_beta: Tensor
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

    @property
    def _staged(self) -> DeltaStaged:
        return DeltaStaged(key=self.staged_key, value=self.staged_value, log_decay=self.staged_log_decay, beta=self.staged_beta)

    def mix(self, x: Tensor, gates: DeltaGates, *, block: Block) -> Tensor:
        mixed = self.kernels.convolve(x, self.convolution, self.conv_state, self.staged_conv, block)
        return self.kernels.delta_rule(mixed, gates, self.recurrent_state, self._staged, block)

    def commit(self, count: Tensor) -> None:
        self.kernels.commit_delta_rule(self.recurrent_state, self._staged, count)
        self.kernels.shift(self.conv_state, self.staged_conv, count)
