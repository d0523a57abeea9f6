"""Qwen4: gated delta nets beside attention with an indexer; some layers also see hashed n-grams of the text."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from hybridge.cache.block import CacheSizes
from hybridge.cache.errors import CheckpointError, UnsupportedModelError
from hybridge.cache.families.attention import full_attention, head_dim, kv_heads
from hybridge.cache.families.family import Config, Family
from hybridge.cache.families.gated_delta import gated_delta_net
from hybridge.cache.layers.composite import CompositeLayer
from hybridge.cache.layers.indexed_attention import IndexedFullAttentionLayer
from hybridge.cache.layers.key_pool import KeyPoolLayer
from hybridge.cache.layers.layer import CacheLayer
from hybridge.cache.layers.short_conv import ShortConvLayer
from hybridge.cache.operations.kernels import Kernels

MOST_EXACT_IDS = 2**24
"""float32 holds every integer up to here."""


def indexed_attention(config: Config, sizes: CacheSizes, kernels: Kernels, index: int) -> CacheLayer:
    """Return attention without an indexer if every pool of ``max_seq_len`` tokens is selected, else indexed attention."""
    if config.indexer_budget is None:
        raise CheckpointError(
            "config.json says indexer_budget = None, but has layers of indexed attention: expected how many tokens the indexer "
            "selects. Take the config.json that came with the checkpoint."
        )
    pool, choices = config.indexer_compress_ratio, config.indexer_budget // config.indexer_compress_ratio
    if sizes.max_seq_len // pool <= choices:
        return full_attention(config, sizes, kernels, index)
    if pool < 2:
        raise UnsupportedModelError(
            f"config.json says indexer_compress_ratio = {pool}, expected pools of 2 or more tokens to select from. Without an "
            f"indexer such a model can be run up to indexer_budget = {config.indexer_budget}: lower max_seq_len to that."
        )
    attention = IndexedFullAttentionLayer(sizes, kernels, kv_heads=kv_heads(config), head_dim=head_dim(config), source=index)
    indexer = KeyPoolLayer(sizes, kernels, head_dim=config.indexer_head_dim, pool=pool, choices=choices)
    return CompositeLayer(sizes, kernels, {"attention": attention, "indexer": indexer})


def linear_attention(config: Config, sizes: CacheSizes, kernels: Kernels, index: int) -> CacheLayer:
    """Return the layer; with n-grams it also has a dilated convolution's window and the last tokens, as ids less the end's."""
    mixer = gated_delta_net(config, sizes, kernels, index)
    if index + 1 not in config.ple_layer_ids:
        return mixer
    _check_ngrams(config)
    channels, width = config.hc_count * config.hidden_size, (config.ple_conv_kernel_size - 1) * config.ngram_size
    conv = ShortConvLayer(sizes, kernels, channels=channels, conv_kernel=width + 1)
    # Every id is exact in float32 (checked), and every runtime moves rows of it.
    tokens = ShortConvLayer(sizes, kernels, channels=1, conv_kernel=config.ngram_size, dtype=torch.float32)
    return CompositeLayer(sizes, kernels, {"mixer": mixer, "ngram_conv": conv, "tokens": tokens})


def _check_ngrams(config: Config) -> None:
    """Raises UnsupportedModelError for n-grams that the states above cannot follow."""
    if config.ple_conv_kernel_size < 2:
        raise UnsupportedModelError(
            f"config.json says ple_conv_kernel_size = {config.ple_conv_kernel_size}, expected 2 or more: a shorter convolution "
            "has no state. Take the config.json that came with the checkpoint."
        )
    if config.vocab_size > MOST_EXACT_IDS:
        raise UnsupportedModelError(
            f"config.json says vocab_size = {config.vocab_size} and ple_layer_ids = {config.ple_layer_ids}: the ids that "
            f"n-grams are made of are kept as float32, which is exact up to {MOST_EXACT_IDS}. "
            "Take a model with a smaller vocabulary."
        )


FAMILIES: Mapping[str, Family] = {
    "qwen4_exp_text": Family(layers={"indexed_attention": indexed_attention, "linear_attention": linear_attention})
}
