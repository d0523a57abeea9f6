"""Families with nothing but attention, and the attention layers of all others."""

from __future__ import annotations

from collections.abc import Mapping

from hybridge.cache.block import CacheSizes
from hybridge.cache.families.family import Config, Family
from hybridge.cache.full_attention import FullAttentionLayer
from hybridge.cache.kernels import Kernels
from hybridge.cache.layer import CacheLayer
from hybridge.cache.sliding_attention import SlidingAttentionLayer


def full_attention(config: Config, sizes: CacheSizes, kernels: Kernels, index: int) -> CacheLayer:
    return FullAttentionLayer(sizes, kernels, kv_heads=kv_heads(config), head_dim=head_dim(config))


def sliding_attention(config: Config, sizes: CacheSizes, kernels: Kernels, index: int) -> CacheLayer:
    """A window that no text of ``max_seq_len`` tokens outgrows is full attention, in less memory."""
    if config.sliding_window >= sizes.max_seq_len:
        return full_attention(config, sizes, kernels, index)
    return SlidingAttentionLayer(
        sizes, kernels, kv_heads=kv_heads(config), head_dim=head_dim(config), window=config.sliding_window
    )


def all_sliding(config: Config) -> list[str]:
    """Sliding attention in every layer where the config has a window, whatever else it says."""
    return ["sliding_attention" if config.sliding_window else "full_attention"] * config.num_hidden_layers


def head_dim(config: Config) -> int:
    dim: int = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return dim


def kv_heads(config: Config) -> int:
    heads: int = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    return heads


ATTENTION = Family(layers={"full_attention": full_attention, "sliding_attention": sliding_attention})

MISTRAL = Family(layers=ATTENTION.layers, plan=all_sliding)

FAMILIES: Mapping[str, Family] = {"llama": ATTENTION, "qwen3": ATTENTION, "mistral": MISTRAL}
