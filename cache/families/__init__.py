"""Build the layers of a model's cache from its config: one entry a model type, one function a layer type.

A config is transformers' (or anything with the same attributes); nothing of transformers is imported here.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from hybridge.cache.block import CacheSizes
from hybridge.cache.families import attention, convolution, delta_rule, state_space
from hybridge.cache.families.family import (
    ADVICE,
    Config,
    Family,
    LayerBuilder,
    Signatures,
    check_causal,
    check_experts,
    check_layer_count,
    check_rope,
    check_windows,
    own_context,
    summarize,
)
from hybridge.cache.layers.layer import CacheLayer
from hybridge.cache.operations.kernels import Kernels
from hybridge.errors import CheckpointError, UnsupportedModelError

__all__ = [
    "ATTENTION_ALONE",
    "FAMILIES",
    "SIGNATURES",
    "Config",
    "Family",
    "LayerBuilder",
    "build_layers",
    "config_dtype",
    "family_of",
    "own_context",
    "plan",
    "text_config",
]

FAMILIES: Mapping[str, Family] = {**attention.FAMILIES, **convolution.FAMILIES, **delta_rule.FAMILIES, **state_space.FAMILIES}
"""The layers of each ``model_type`` of a text config."""

SIGNATURES: Signatures = (*delta_rule.SIGNATURES, *state_space.SIGNATURES, *convolution.SIGNATURES, *attention.SIGNATURES)
"""The surest first: transformers keeps the names of a mixer's parts from family to family."""

ATTENTION_ALONE = "hybridge_attention_alone"
"""The attribute of a text config of another model type whose layers are attention alone."""


def family_of(config: Config) -> Family | None:
    """Return the family of a text config; for an unknown model type that of attention alone, if the config is marked so."""
    untried = attention.UNTRIED if getattr(config, ATTENTION_ALONE, False) else None
    return FAMILIES.get(config.model_type, untried)


def text_config(config: Config) -> Config:
    """Return the config of the text model; the config itself if there is no other."""
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def config_dtype(config: Config) -> torch.dtype:
    """Return the dtype that the config asks for; float32 if it does not."""
    dtype = getattr(text_config(config), "dtype", None)
    return dtype if isinstance(dtype, torch.dtype) else torch.float32


def plan(config: Config) -> list[str]:
    """Return the type of each decoder layer of a text config. Raises CheckpointError for an absurd number of them.

    Raises UnsupportedModelError where tokens see later ones.
    """
    check_layer_count(config)
    check_causal(config)
    return list((family_of(config) or Family(layers={})).plan(config))


def build_layers(config: Config, sizes: CacheSizes, kernels: Kernels) -> list[CacheLayer]:
    """Return one cache layer for each decoder layer.

    Raises UnsupportedModelError, naming the model type or the layers that are the obstacle, and CheckpointError for a config
    that contradicts itself.
    """
    config = text_config(config)
    types, family = plan(config), family_of(config)
    if family is None:
        raise UnsupportedModelError(
            f"model type {config.model_type!r} is not supported; its layers are {summarize(types)}.\n"
            f"Supported: {', '.join(sorted(FAMILIES))}."
        )
    if obstacles := [kind for kind in types if kind not in family.layers]:
        raise UnsupportedModelError(
            f"this {config.model_type!r} model has layers that hybridge cannot run: {summarize(obstacles)} of {len(types)}.\n"
            f"Supported for {config.model_type!r}: {', '.join(sorted(family.layers))}."
        )
    if len(types) != config.num_hidden_layers:
        raise CheckpointError(
            f"config.json contradicts itself: {len(types)} layer types but num_hidden_layers = {config.num_hidden_layers}."
        )
    check_rope(config, sizes)
    check_experts(config)
    try:
        layers = [family.layers[kind](config, sizes, kernels, index) for index, kind in enumerate(types)]
    except ZeroDivisionError as error:  # of a size by a number of heads or the like
        raise CheckpointError(f"config.json gives sizes that no layer can have: {error}. {ADVICE}") from error
    check_windows(config, layers)
    return layers
