"""Define the layers of families with nothing but attention, and the attention layers of all others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from hybridge.cache.block import CacheSizes
from hybridge.cache.families.family import Config, Family, LayerBuilder, Signatures, check_positive
from hybridge.cache.layers.attention import AttentionLayer, FullAttentionLayer, QuantizedAttentionLayer, SharedAttentionLayer
from hybridge.cache.layers.latent_attention import LatentAttentionLayer
from hybridge.cache.layers.layer import CacheLayer
from hybridge.cache.layers.sliding_attention import SlidingAttentionLayer
from hybridge.cache.operations.kernels import Kernels
from hybridge.errors import CheckpointError, UnsupportedModelError


def full_attention(config: Config, sizes: CacheSizes, kernels: Kernels, index: int) -> CacheLayer:
    return unwindowed(sizes, kernels, kv_heads=kv_heads(config), head_dim=head_dim(config))


def unwindowed(sizes: CacheSizes, kernels: Kernels, *, kv_heads: int, head_dim: int) -> AttentionLayer:
    """Return full attention in the precision that was asked for."""
    if sizes.kv_dtype == torch.int8:
        return QuantizedAttentionLayer(sizes, kernels, kv_heads=kv_heads, head_dim=head_dim)
    return FullAttentionLayer(sizes, kernels, kv_heads=kv_heads, head_dim=head_dim, dtype=sizes.kv_dtype)


def sliding_attention(config: Config, sizes: CacheSizes, kernels: Kernels, index: int) -> CacheLayer:
    return windowed(config, sizes, kernels, option="sliding_window")


def chunked_attention(config: Config, sizes: CacheSizes, kernels: Kernels, index: int) -> CacheLayer:
    return windowed(config, sizes, kernels, option="attention_chunk_size", chunked=True)


def windowed(config: Config, sizes: CacheSizes, kernels: Kernels, *, option: str, chunked: bool = False) -> CacheLayer:
    """Return attention over a window of ``option`` tokens; full attention if no text of ``max_seq_len`` tokens outgrows it.

    Where rows of a picture see each other, it may be in layers with a window alone, so that these stay what they are.

    Raises CheckpointError if the config has no such window.
    """
    window, shape = getattr(config, option), {"kv_heads": kv_heads(config), "head_dim": head_dim(config)}
    if window is None or window < 1:
        raise CheckpointError(f"config.json says {option} = {window}, but has layers with a window: expected 1 or more tokens.")
    if window >= sizes.max_seq_len and not sizes.picture_rows:
        return unwindowed(sizes, kernels, **shape)
    window = window if chunked else min(window, sizes.max_seq_len)
    return SlidingAttentionLayer(sizes, kernels, window=window, chunked=chunked, **shape)


def latent_attention(config: Config, sizes: CacheSizes, kernels: Kernels, index: int) -> CacheLayer:
    """Return attention over one compressed row a position. Raises CheckpointError if heads share keys."""
    check_positive(config, "num_attention_heads", "kv_lora_rank", "qk_nope_head_dim", "v_head_dim")
    heads = config.num_attention_heads
    if config.num_key_value_heads != heads:
        raise CheckpointError(
            f"config.json says num_key_value_heads = {config.num_key_value_heads}, expected num_attention_heads = {heads}: "
            "latent attention expands keys and values for every query head. Correct config.json."
        )
    return LatentAttentionLayer(sizes, kernels, rank=config.kv_lora_rank, shared_dim=config.qk_rope_head_dim)


def sharing_attention(config: Config, sizes: CacheSizes, kernels: Kernels, index: int) -> CacheLayer:
    """Return a layer; the last layers attend over keys and values of the last one of their type before."""
    kind = config.layer_types[index]
    if index >= first_sharing(config):
        return SharedAttentionLayer(sizes, kernels, source=shared_source(config, kind))
    return LAYERS[kind](config, sizes, kernels, index)


def gemma4_attention(config: Config, sizes: CacheSizes, kernels: Kernels, index: int) -> CacheLayer:
    """Return a layer of ``sharing_attention`` with heads of its own."""
    if index >= first_sharing(config) and getattr(config, "hidden_size_per_layer_input", None) == 0:
        raise UnsupportedModelError(
            f"config.json says num_kv_shared_layers = {config.num_kv_shared_layers} and hidden_size_per_layer_input = 0, which "
            "transformers itself cannot run; take the config.json that came with the checkpoint."
        )
    return sharing_attention(HeadsOf(config, index), sizes, kernels, index)


def first_sharing(config: Config) -> int:
    """Return how many layers have keys and values of their own; those after them share these."""
    count: int = config.num_hidden_layers - config.num_kv_shared_layers
    return count


def shared_source(config: Config, kind: str) -> int:
    """Return the last layer of type ``kind`` with keys and values of its own. Raises CheckpointError if there is none."""
    types = config.layer_types[: first_sharing(config)]
    if kind not in types:
        raise CheckpointError(
            f"config.json says num_kv_shared_layers, but no earlier layer is {kind} to share keys and values with, expected "
            f"one among the first {len(types)}."
        )
    return max(i for i, each in enumerate(types) if each == kind)


class HeadsOf:
    """A config as one of its layers sees it."""

    def __init__(self, config: Config, index: int) -> None:
        own = config.per_layer_config[index]
        self.sliding_window, self.head_dim = config.sliding_window, own.head_dim
        self.num_key_value_heads = own.num_key_value_heads
        self.hidden_size, self.num_attention_heads = config.hidden_size, config.num_attention_heads
        self.layer_types, self.num_hidden_layers = config.layer_types, config.num_hidden_layers
        self.num_kv_shared_layers = config.num_kv_shared_layers


# The plans of models that do not read ``layer_types``


def all_full(config: Config) -> list[str]:
    return ["full_attention"] * config.num_hidden_layers


def all_sliding(config: Config) -> list[str]:
    """Return sliding attention in every layer if the config has a window, otherwise full attention."""
    return ["full_attention" if config.sliding_window is None else "sliding_attention"] * config.num_hidden_layers


def head_dim(config: Config) -> int:
    dim: int = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return dim


def kv_heads(config: Config) -> int:
    heads: int = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    return heads


def planned_by_window(config: Config) -> Sequence[str]:
    """Return the config's layer types; without any, sliding attention everywhere if it has a window and uses it."""
    if types := getattr(config, "layer_types", None):
        return list(types)
    windowed = getattr(config, "sliding_window", None) is not None and getattr(config, "use_sliding_window", True)
    return ["sliding_attention" if windowed else "full_attention"] * config.num_hidden_layers


LAYERS: Mapping[str, LayerBuilder] = {"full_attention": full_attention, "sliding_attention": sliding_attention}
ATTENTION = Family(layers=LAYERS)
WINDOWED = Family(layers=LAYERS, plan=all_sliding)
LATENT = Family(layers={"full_attention": latent_attention}, plan=all_full)
GEMMA4 = Family(layers=dict.fromkeys(LAYERS, gemma4_attention))
UNTRIED = Family(layers=LAYERS, plan=planned_by_window)
"""The family of configs that were found to be of attention alone; see ``family_of``."""

FAMILIES: Mapping[str, Family] = {
    "cohere2": ATTENTION,
    "deepseek_v2": LATENT,
    "exaone4": ATTENTION,
    "gemma2": ATTENTION,
    "gemma3_text": ATTENTION,
    "gemma3n_text": Family(layers=dict.fromkeys(LAYERS, sharing_attention)),
    "gemma4_text": GEMMA4,
    "gemma4_unified_text": GEMMA4,
    "glm4_moe_lite": LATENT,
    "gpt_oss": ATTENTION,
    "granite_swa": ATTENTION,
    "hunyuan_v1_dense": Family(layers=LAYERS, plan=all_full),
    "llama": Family(layers=LAYERS, plan=all_full),
    "llama4_text": Family(layers={"full_attention": full_attention, "chunked_attention": chunked_attention}),
    "minicpm3": LATENT,
    "ministral": ATTENTION,
    "mistral": WINDOWED,
    "olmo3": ATTENTION,
    "phi3": WINDOWED,
    "qwen2": ATTENTION,
    "qwen3": ATTENTION,
    "qwen3_moe": WINDOWED,
    "smollm3": ATTENTION,
    "youtu": LATENT,
}

SIGNATURES: Signatures = (
    ("latent attention", frozenset({"kv_b_proj", "o_proj"})),
    ("attention", frozenset({"q_proj", "k_proj", "v_proj", "o_proj"})),
    ("attention", frozenset({"qkv_proj", "o_proj"})),
)
