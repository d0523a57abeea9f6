"""Families with gated delta nets."""

from __future__ import annotations

from collections.abc import Mapping

from hybridge.cache.block import CacheSizes
from hybridge.cache.errors import CheckpointError, UnsupportedModelError
from hybridge.cache.families.attention import full_attention
from hybridge.cache.families.family import Config, Family
from hybridge.cache.layers.gated_delta_net import GatedDeltaNetLayer
from hybridge.cache.layers.layer import CacheLayer
from hybridge.cache.operations.kernels import Kernels


def gated_delta_net(config: Config, sizes: CacheSizes, kernels: Kernels, index: int) -> CacheLayer:
    """Raises CheckpointError where the value heads cannot share the key heads evenly.

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

FAMILIES: Mapping[str, Family] = dict.fromkeys(("olmo_hybrid", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next"), GATED_DELTA)
