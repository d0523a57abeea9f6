"""Which layers a model's cache has, read from its config: one entry a model type, one function a layer type.

A config is transformers' (or anything with the same attributes); nothing of transformers is imported here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from hybridge.cache.block import CacheSizes
from hybridge.cache.errors import CheckpointError, UnsupportedModelError
from hybridge.cache.full_attention import FullAttentionLayer
from hybridge.cache.gated_delta_net import GatedDeltaNetLayer
from hybridge.cache.kernels import Kernels
from hybridge.cache.layer import CacheLayer

Config = Any  # transformers' PreTrainedConfig, by its attributes
LayerBuilder = Callable[[Config, CacheSizes, Kernels], CacheLayer]


def full_attention(config: Config, sizes: CacheSizes, kernels: Kernels) -> CacheLayer:
    heads = config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    return FullAttentionLayer(sizes, kernels, kv_heads=kv_heads, head_dim=head_dim)


def gated_delta_net(config: Config, sizes: CacheSizes, kernels: Kernels) -> CacheLayer:
    return GatedDeltaNetLayer(
        sizes,
        kernels,
        key_heads=config.linear_num_key_heads,
        value_heads=config.linear_num_value_heads,
        key_dim=config.linear_key_head_dim,
        value_dim=config.linear_value_head_dim,
        conv_kernel=config.linear_conv_kernel_dim,
    )


ATTENTION_ONLY: Mapping[str, LayerBuilder] = {"full_attention": full_attention}
GATED_DELTA: Mapping[str, LayerBuilder] = {"full_attention": full_attention, "linear_attention": gated_delta_net}

FAMILIES: Mapping[str, Mapping[str, LayerBuilder]] = {
    "llama": ATTENTION_ONLY,
    "qwen3": ATTENTION_ONLY,
    "qwen3_next": GATED_DELTA,
    "qwen3_5_text": GATED_DELTA,
}
"""For each ``model_type`` of a text config, what each entry of its ``layer_types`` is."""


MOST_LAYERS = 4096


def text_config(config: Config) -> Config:
    """The config of the text model; the config itself where there is no other."""
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def config_dtype(config: Config) -> torch.dtype:
    """The dtype that the config asks for; float32 where it does not."""
    dtype = getattr(text_config(config), "dtype", None)
    return dtype if isinstance(dtype, torch.dtype) else torch.float32


def layer_types(config: Config) -> list[str]:
    """The config's ``layer_types``; full attention everywhere where it has none. Raises CheckpointError for absurd numbers."""
    if not 1 <= config.num_hidden_layers <= MOST_LAYERS:
        raise CheckpointError(f"config.json says num_hidden_layers = {config.num_hidden_layers}, expected 1 to {MOST_LAYERS}.")
    types = getattr(config, "layer_types", None)
    return list(types) if types else ["full_attention"] * config.num_hidden_layers


def build_layers(config: Config, sizes: CacheSizes, kernels: Kernels) -> list[CacheLayer]:
    """One cache layer for each decoder layer.

    Raises UnsupportedModelError, naming the model type or the layers that are the obstacle.
    """
    config = text_config(config)
    types = layer_types(config)
    builders = FAMILIES.get(config.model_type)
    if builders is None:
        raise UnsupportedModelError(
            f"model type {config.model_type!r} is not supported; its layers are {describe(types)}.\n"
            f"Supported: {', '.join(sorted(FAMILIES))}."
        )
    if obstacles := [kind for kind in types if kind not in builders]:
        raise UnsupportedModelError(
            f"this {config.model_type!r} model has layers that hybridge cannot run: {describe(obstacles)} of {len(types)}.\n"
            f"Supported for {config.model_type!r}: {', '.join(sorted(builders))}."
        )
    if len(types) != config.num_hidden_layers:
        raise CheckpointError(
            f"config.json contradicts itself: {len(types)} layer_types but num_hidden_layers = {config.num_hidden_layers}."
        )
    try:
        return [builders[kind](config, sizes, kernels) for kind in types]
    except (RuntimeError, TypeError, ArithmeticError) as error:
        raise CheckpointError(f"config.json gives sizes that no layer can have: {error}") from None


def describe(types: list[str]) -> str:
    """``3 × linear_attention, 1 × full_attention``."""
    return ", ".join(f"{types.count(kind)} × {kind}" for kind in dict.fromkeys(types))
