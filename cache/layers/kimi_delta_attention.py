"""The state of Kimi delta attention (Kimi Linear, Ling 3, GLM-5.3-Flash): that of a gated delta net, fading by channel."""

from __future__ import annotations

from typing import ClassVar

from hybridge.cache.block import CacheSizes
from hybridge.cache.layers.gated_delta_net import GatedDeltaNetLayer
from hybridge.cache.operations.kernels import Kernels


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
