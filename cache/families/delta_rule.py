"""Define the layers of families with delta rules: gated, by channel (Kimi delta attention), and RWKV-7's general one."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from hybridge.cache.block import CacheSizes
from hybridge.cache.families.attention import full_attention, head_dim, kv_heads, latent_attention
from hybridge.cache.families.family import ADVICE, Config, Family, Signatures, check_positive
from hybridge.cache.layers.indexed_attention import IndexedAttentionLayer, IndexedFullAttentionLayer, KeyPoolLayer
from hybridge.cache.layers.layer import CacheLayer, CompositeLayer
from hybridge.cache.layers.recurrent import GatedDeltaNetLayer, KimiDeltaAttentionLayer, Rwkv7Layer
from hybridge.cache.layers.short_conv import DelayLayer, ShortConvLayer
from hybridge.cache.operations.kernels import Kernels
from hybridge.errors import CheckpointError, UnsupportedModelError


def gated_delta_net(config: Config, sizes: CacheSizes, kernels: Kernels, index: int) -> CacheLayer:
    """Return the layer. Raises CheckpointError if the value heads cannot share the key heads evenly.

    Raises UnsupportedModelError for a convolution without a state: runtimes cannot move a tensor without elements.
    """
    key_heads, value_heads = config.linear_num_key_heads, config.linear_num_value_heads
    if min(key_heads, value_heads) < 1 or value_heads % key_heads:
        raise CheckpointError(
            f"config.json says linear_num_key_heads = {key_heads} and linear_num_value_heads = {value_heads}, expected 1 or "
            "more and as many value heads for each key head. Take the config.json that came with the checkpoint."
        )
    if config.linear_conv_kernel_dim < 2:
        raise UnsupportedModelError(
            f"config.json says linear_conv_kernel_dim = {config.linear_conv_kernel_dim}, expected 2 or more: a shorter "
            "convolution has no state. Take the config.json that came with the checkpoint."
        )
    return GatedDeltaNetLayer(
        sizes,
        kernels,
        key_heads=key_heads,
        value_heads=value_heads,
        key_dim=config.linear_key_head_dim,
        value_dim=config.linear_value_head_dim,
        conv_kernel=config.linear_conv_kernel_dim,
    )


GATED_DELTA = Family(layers={"full_attention": full_attention, "linear_attention": gated_delta_net})


# Kimi Linear and Ling 3: Kimi delta attention beside latent attention.


def kimi_delta_attention(config: Config, sizes: CacheSizes, kernels: Kernels, index: int) -> CacheLayer:
    check_positive(config, "linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim")
    return KimiDeltaAttentionLayer(
        sizes,
        kernels,
        heads=config.linear_num_heads,
        head_dim=config.linear_head_dim,
        conv_kernel=config.linear_conv_kernel_dim,
    )


KIMI_DELTA = Family(layers={"full_attention": latent_attention, "linear_attention": kimi_delta_attention})


# GLM-5.3-Flash: Kimi delta attention beside latent attention with an indexer.


def indexed_attention(config: Config, sizes: CacheSizes, kernels: Kernels, index: int) -> CacheLayer:
    """Return attention without an indexer if every pool of ``max_seq_len`` tokens is selected, otherwise indexed attention."""
    shared = _shares_indexer(config, index)
    _check_pools(config)
    if sizes.max_seq_len // config.index_kpool <= config.index_topk // config.index_kpool:
        return latent_attention(config, sizes, kernels, index)
    attention = IndexedAttentionLayer(
        sizes, kernels, rank=config.kv_lora_rank, shared_dim=config.qk_rope_head_dim, source=index - shared
    )
    if shared:
        return attention
    indexer = KeyPoolLayer(
        sizes, kernels, head_dim=config.index_head_dim, pool=config.index_kpool, choices=config.index_topk // config.index_kpool
    )
    return CompositeLayer(sizes, kernels, {"attention": attention, "indexer": indexer})


def _shares_indexer(config: Config, index: int) -> bool:
    """Return whether the layer attends to what the one before selected. Raises CheckpointError if that one selects nothing."""
    shared: bool = config.indexer_types[index] == "shared"
    before = [config.layer_types[index - 1], config.indexer_types[index - 1]] if index else []
    if shared and before != ["indexed_attention", "full"]:
        raise CheckpointError(
            f"config.json says indexer_types[{index}] = 'shared', but layer {index - 1} has no indexer to share; "
            "expected indexed attention of the type 'full' there. Correct indexer_types or layer_types in config.json."
        )
    return shared


def _check_pools(config: Config) -> None:
    if not config.index_kpool_always_select_tail:
        raise UnsupportedModelError(
            "index_kpool_always_select_tail = false is not supported: the first tokens would attend to nothing. "
            "Only checkpoints with true can be run."
        )
    if config.index_kpool < 2 or config.index_topk < config.index_kpool:
        raise UnsupportedModelError(
            f"index_kpool = {config.index_kpool} with index_topk = {config.index_topk} is not supported; "
            "expected pools of 2 positions or more, and one pool or more to be selected."
        )


GLM5_NEXT = Family(layers={"indexed_attention": indexed_attention, "linear_attention": kimi_delta_attention})


# Qwen4: gated delta nets beside attention with an indexer; some layers also see hashed n-grams of the text.


MOST_EXACT_IDS = 2**24
"""float32 holds every integer up to here."""


def indexed_full_attention(config: Config, sizes: CacheSizes, kernels: Kernels, index: int) -> CacheLayer:
    """Return attention without an indexer if every pool of ``max_seq_len`` tokens is selected, otherwise indexed attention."""
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
    """Raise UnsupportedModelError for n-grams that the states above cannot follow."""
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


# RWKV-7: no attention; the mixer and the feed-forward layer each see the token before.


def rwkv7(config: Config, sizes: CacheSizes, kernels: Kernels, index: int) -> CacheLayer:
    """Return the layer. Raises UnsupportedModelError for parts that RWKV-7 as published does not have."""
    check_positive(config, "hidden_size", "head_dim", *(f"{name}_low_rank_dim" for name in ("decay", "gate", "a", "v")))
    hidden, value_dims = config.hidden_size, config.value_dim
    if hidden % config.head_dim:
        raise CheckpointError(
            f"config.json says hidden_size = {hidden} and head_dim = {config.head_dim}, expected heads that fill it. {ADVICE}"
        )
    widths = value_dims if isinstance(value_dims, list) else [value_dims or hidden]
    for name, odd in (
        ("attn", config.attn is not None),
        ("value_dim", any(width != hidden for width in widths)),
        ("hidden_act", config.hidden_act != "sqrelu"),
    ):
        if odd:
            raise UnsupportedModelError(
                f"config.json says {name} = {getattr(config, name)!r}, which hybridge does not run: it has RWKV-7 without "
                "attention, with values as wide as the hidden states and squared relu, as published."
            )
    mixer = Rwkv7Layer(sizes, kernels, heads=hidden // config.head_dim, head_dim=config.head_dim)
    shifts = {name: DelayLayer(sizes, kernels, channels=hidden) for name in ("shift", "ffn_shift")}
    return CompositeLayer(sizes, kernels, {"mixer": mixer, **shifts})


def all_linear(config: Config) -> list[str]:
    return ["linear_attention"] * config.num_hidden_layers


FAMILIES: Mapping[str, Family] = {
    **dict.fromkeys(("olmo_hybrid", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next"), GATED_DELTA),
    "bailing_hybrid": KIMI_DELTA,
    "kimi_linear": KIMI_DELTA,
    "glm5_next_text": GLM5_NEXT,
    "rwkv7": Family(layers={"linear_attention": rwkv7}, plan=all_linear),
    "qwen4_exp_text": Family(layers={"indexed_attention": indexed_full_attention, "linear_attention": linear_attention}),
}

SIGNATURES: Signatures = (
    ("Kimi delta attention", frozenset({"A_log", "dt_bias", "conv1d", "f_b_proj"})),
    ("gated delta net", frozenset({"A_log", "dt_bias", "conv1d", "in_proj_qkvz"})),
    ("gated delta net", frozenset({"A_log", "dt_bias", "conv1d", "in_proj_qkv"})),
    ("gated delta net", frozenset({"A_log", "dt_bias", "conv1d", "a_proj", "b_proj"})),
)
