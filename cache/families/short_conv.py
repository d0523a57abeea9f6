"""Families with gated short convolutions between their attention layers: LFM2, its mixture of experts, and LFM3."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hybridge.cache.block import CacheSizes
from hybridge.cache.errors import CheckpointError
from hybridge.cache.families.attention import full_attention, sliding_attention
from hybridge.cache.families.family import Config, Family
from hybridge.cache.layers.layer import CacheLayer
from hybridge.cache.layers.short_conv import ShortConvLayer
from hybridge.cache.operations.kernels import Kernels


def short_conv(config: Config, sizes: CacheSizes, kernels: Kernels, index: int) -> CacheLayer:
    return ShortConvLayer(sizes, kernels, channels=config.hidden_size, conv_kernel=config.conv_L_cache)


def written_plan(config: Config) -> Sequence[str]:
    """Return ``layer_types``. Raises CheckpointError where there are none: nothing else says which layers attend."""
    if not config.layer_types:
        raise CheckpointError(
            f"config.json of this {config.model_type!r} model has no layer_types, expected one of them for each of its "
            f"{config.num_hidden_layers} layers; take the config.json that came with the checkpoint."
        )
    types: Sequence[str] = config.layer_types
    return types


LFM2 = Family(layers={"full_attention": full_attention, "conv": short_conv}, plan=written_plan)

LFM3 = Family(layers={**LFM2.layers, "sliding_attention": sliding_attention}, plan=written_plan)

FAMILIES: Mapping[str, Family] = {"lfm2": LFM2, "lfm2_moe": LFM2, "lfm3": LFM3}
