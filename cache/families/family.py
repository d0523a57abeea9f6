"""A model family's cache: which layer each entry of its plan is, and where the plan is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hybridge.cache.block import CacheSizes
from hybridge.cache.errors import CheckpointError
from hybridge.cache.layers.layer import CacheLayer
from hybridge.cache.operations.kernels import Kernels

Config = Any  # transformers' PreTrainedConfig, by its attributes
LayerBuilder = Callable[[Config, CacheSizes, Kernels, int], CacheLayer]
"""Builds the cache layer of the decoder layer with that index."""

MOST_LAYERS = 4096


def layer_types(config: Config) -> Sequence[str]:
    """Return the config's ``layer_types``; full attention everywhere where it has none."""
    return getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers


@dataclass(frozen=True, kw_only=True)
class Family:
    """layers: what builds the cache layer for each entry of the plan; plan: one entry for each decoder layer."""

    layers: Mapping[str, LayerBuilder]
    plan: Callable[[Config], Sequence[str]] = layer_types


def checked_layer_count(config: Config) -> int:
    """Return ``num_hidden_layers``. Raises CheckpointError for absurd numbers."""
    count: int = config.num_hidden_layers
    if not 1 <= count <= MOST_LAYERS:
        raise CheckpointError(f"config.json says num_hidden_layers = {count}, expected 1 to {MOST_LAYERS}.")
    return count


def summarize(types: Sequence[str]) -> str:
    """Return a summary such as ``3 × linear_attention, 1 × full_attention``."""
    return ", ".join(f"{list(types).count(kind)} × {kind}" for kind in dict.fromkeys(types))
