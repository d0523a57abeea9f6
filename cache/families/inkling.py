"""Inkling and Inkling 2: attention and four short convolutions in every layer."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from hybridge.cache.block import CacheSizes
from hybridge.cache.errors import CheckpointError
from hybridge.cache.families.family import Config, Family
from hybridge.cache.layers.attention import AttentionLayer
from hybridge.cache.layers.composite import CompositeLayer
from hybridge.cache.layers.full_attention import FullAttentionLayer
from hybridge.cache.layers.layer import CacheLayer
from hybridge.cache.layers.short_conv import ShortConvLayer
from hybridge.cache.layers.sliding_attention import SlidingAttentionLayer
from hybridge.cache.operations.kernels import Kernels

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
    """The attention and its convolutions: ``channels`` of keys and of values, hidden ones of what comes out; all float32."""
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

FAMILIES: Mapping[str, Family] = {"inkling_text": INKLING, "inkling2_text": INKLING}
