"""Define the layers of families with short convolutions: LFM2 and LFM3, Inkling, ZAYA."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import torch

from hybridge.cache.block import CacheSizes
from hybridge.cache.families.attention import full_attention, sliding_attention
from hybridge.cache.families.family import Config, Family, LayerBuilder, Signatures
from hybridge.cache.layers.attention import AttentionLayer, FullAttentionLayer
from hybridge.cache.layers.layer import CacheLayer, CompositeLayer
from hybridge.cache.layers.short_conv import DelayLayer, ShortConvLayer
from hybridge.cache.layers.sliding_attention import SlidingAttentionLayer
from hybridge.cache.operations.kernels import Kernels
from hybridge.errors import CheckpointError, UnsupportedModelError


def short_conv(config: Config, sizes: CacheSizes, kernels: Kernels, index: int) -> CacheLayer:
    return ShortConvLayer(sizes, kernels, channels=config.hidden_size, conv_kernel=config.conv_L_cache)


def written_plan(config: Config) -> Sequence[str]:
    """Return ``layer_types``. Raises CheckpointError if there are none: nothing else says which layers attend."""
    if not config.layer_types:
        raise CheckpointError(
            f"config.json of this {config.model_type!r} model has no layer_types, expected one of them for each of its "
            f"{config.num_hidden_layers} layers; take the config.json that came with the checkpoint."
        )
    types: Sequence[str] = config.layer_types
    return types


LFM2 = Family(layers={"full_attention": full_attention, "conv": short_conv}, plan=written_plan)

LFM3 = Family(layers={**LFM2.layers, "sliding_attention": sliding_attention}, plan=written_plan)


# Inkling and Inkling 2: attention and four short convolutions in every layer.


CONVOLUTIONS = ("key_conv", "value_conv", "attention_conv", "mlp_conv")
"""The parts beside ``attention``, in the order of transformers' ``conv_idx``."""


def full(config: Config, sizes: CacheSizes, kernels: Kernels, index: int) -> CacheLayer:
    """Return float32 attention whatever was asked for: the operators over 8 bits take no bias by distance."""
    heads = _kv_heads(config, config.num_attention_heads, config.num_key_value_heads)
    attention = FullAttentionLayer(sizes, kernels, kv_heads=heads, head_dim=config.head_dim)
    return _with_convolutions(config, attention, heads * config.head_dim)


def sliding(config: Config, sizes: CacheSizes, kernels: Kernels, index: int) -> CacheLayer:
    """Return sliding attention with heads of its own; full attention, in less memory, if no text outgrows the window."""
    heads = _kv_heads(config, config.swa_num_attention_heads, config.swa_num_key_value_heads)
    dim, window = config.swa_head_dim, config.sliding_window_size
    attention: AttentionLayer
    if window >= sizes.max_seq_len:
        attention = FullAttentionLayer(sizes, kernels, kv_heads=heads, head_dim=dim)
    else:
        attention = SlidingAttentionLayer(sizes, kernels, kv_heads=heads, head_dim=dim, window=window)
    return _with_convolutions(config, attention, heads * dim)


def _with_convolutions(config: Config, attention: AttentionLayer, channels: int) -> CacheLayer:
    """Return the attention with its float32 convolutions: of keys and values (``channels`` each) and of two outputs."""
    sizes, kernels = attention.sizes, attention.kernels
    parts: dict[str, CacheLayer] = {"attention": attention}
    for name, width in zip(CONVOLUTIONS, (channels, channels, config.hidden_size, config.hidden_size), strict=True):
        parts[name] = ShortConvLayer(sizes, kernels, channels=width, conv_kernel=config.conv_kernel_size, dtype=torch.float32)
    return CompositeLayer(sizes, kernels, parts)


def _kv_heads(config: Config, heads: int, kv_heads: int) -> int:
    if kv_heads < 1 or heads % kv_heads:
        raise CheckpointError(
            f"config.json of this {config.model_type!r} model gives {heads} attention heads and {kv_heads} key/value heads, "
            "expected a multiple; take the config.json that came with the checkpoint."
        )
    return kv_heads


INKLING = Family(layers={"hybrid": full, "hybrid_sliding": sliding})


# ZAYA: attention whose queries, keys and values are mixed with those of the tokens before.


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
    """Raise UnsupportedModelError for biased projections: their delay starts at the bias, but an empty state is zeros."""
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


FAMILIES: Mapping[str, Family] = {
    "lfm2": LFM2,
    "lfm2_moe": LFM2,
    "lfm3": LFM3,
    "inkling_text": INKLING,
    "inkling2_text": INKLING,
    "zaya": ZAYA,
}

SIGNATURES: Signatures = (("short convolution", frozenset({"conv", "in_proj", "out_proj"})),)
