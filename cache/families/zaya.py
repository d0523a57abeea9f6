"""ZAYA: attention whose queries, keys and values are mixed with those of the tokens before."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from hybridge.cache.block import CacheSizes
from hybridge.cache.errors import CheckpointError, UnsupportedModelError
from hybridge.cache.families.attention import full_attention, sliding_attention
from hybridge.cache.families.family import Config, Family, LayerBuilder
from hybridge.cache.layers.composite import CompositeLayer
from hybridge.cache.layers.delay import DelayLayer
from hybridge.cache.layers.layer import CacheLayer
from hybridge.cache.layers.short_conv import ShortConvLayer
from hybridge.cache.operations.kernels import Kernels


def convolved(attention: LayerBuilder, config: Config, sizes: CacheSizes, kernels: Kernels, index: int) -> CacheLayer:
    """Return two convolutions in a row over queries and keys, and a delay of half the values; then ``attention``.

    The convolutions have kernels of a and b, together of a + b - 1: one window of the first one's inputs serves both.
    """
    _check(config)
    queries, keys = (heads * config.head_dim for heads in (config.num_attention_heads, config.num_key_value_heads))
    kernel = config.cca_time0 + config.cca_time1 - 1
    conv = ShortConvLayer(sizes, kernels, channels=queries + keys, conv_kernel=kernel)
    parts = {"attention": attention(config, sizes, kernels, index), "conv": conv}
    return CompositeLayer(sizes, kernels, {**parts, "delay": DelayLayer(sizes, kernels, channels=keys // 2)})


def _check(config: Config) -> None:
    """Raises UnsupportedModelError for biased projections, whose delay starts at the bias: an empty state is zeros."""
    if config.attention_bias:
        raise UnsupportedModelError(
            "config.json says attention_bias = true, which hybridge does not support for 'zaya', expected false: "
            "delayed values would start at the bias, not at 0. Use a checkpoint without these biases, as ZAYA1 is."
        )
    if config.num_key_value_heads * config.head_dim % 2:
        raise CheckpointError(
            f"config.json gives values of {config.num_key_value_heads} heads of {config.head_dim}, expected an even number of "
            "channels: half of them are delayed. Check num_key_value_heads and head_dim in config.json."
        )


ZAYA = Family(layers={"hybrid": partial(convolved, full_attention), "hybrid_sliding": partial(convolved, sliding_attention)})

FAMILIES: Mapping[str, Family] = {"zaya": ZAYA}
