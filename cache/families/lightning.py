"""Families with lightning attention."""

from __future__ import annotations

from collections.abc import Mapping

from hybridge.cache.block import CacheSizes
from hybridge.cache.families.attention import full_attention, head_dim, sliding_attention
from hybridge.cache.families.family import Config, Family
from hybridge.cache.layers.layer import CacheLayer
from hybridge.cache.layers.lightning_attention import LightningAttentionLayer
from hybridge.cache.operations.kernels import Kernels


def lightning_attention(config: Config, sizes: CacheSizes, kernels: Kernels, index: int) -> CacheLayer:
    return LightningAttentionLayer(sizes, kernels, heads=config.num_attention_heads, head_dim=head_dim(config))


def attention(config: Config, sizes: CacheSizes, kernels: Kernels, index: int) -> CacheLayer:
    """Return full attention, or sliding attention if the config has a window: MiniMax calls both full."""
    build = full_attention if config.sliding_window is None else sliding_attention
    return build(config, sizes, kernels, index)


FAMILIES: Mapping[str, Family] = {
    "minimax": Family(layers={"full_attention": attention, "linear_attention": lightning_attention})
}
