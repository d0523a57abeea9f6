"""Families with Mamba's first version."""

from __future__ import annotations

from collections.abc import Mapping

from hybridge.cache.block import CacheSizes
from hybridge.cache.errors import CheckpointError
from hybridge.cache.families.attention import full_attention, unwindowed
from hybridge.cache.families.checks import ADVICE, check_positive
from hybridge.cache.families.family import Config, Family
from hybridge.cache.layers.composite import CompositeLayer
from hybridge.cache.layers.layer import CacheLayer
from hybridge.cache.layers.mamba import MambaLayer
from hybridge.cache.operations.kernels import Kernels


def mamba(config: Config, sizes: CacheSizes, kernels: Kernels, index: int) -> CacheLayer:
    check_positive(config, "intermediate_size", "state_size", "conv_kernel")
    channels, states, kernel = config.intermediate_size, config.state_size, config.conv_kernel
    return MambaLayer(sizes, kernels, channels=channels, state_dim=states, conv_kernel=kernel)


def jamba_mamba(config: Config, sizes: CacheSizes, kernels: Kernels, index: int) -> CacheLayer:
    check_positive(config, "mamba_expand", "mamba_d_state", "mamba_d_conv")
    channels = config.mamba_expand * config.hidden_size
    return MambaLayer(sizes, kernels, channels=channels, state_dim=config.mamba_d_state, conv_kernel=config.mamba_d_conv)


def zamba_mamba(config: Config, sizes: CacheSizes, kernels: Kernels, index: int) -> CacheLayer:
    check_positive(config, "mamba_expand", "mamba_d_state", "mamba_d_conv", "n_mamba_heads")
    channels, states, kernel = config.mamba_expand * config.hidden_size, config.mamba_d_state, config.mamba_d_conv
    return MambaLayer(sizes, kernels, channels=channels, state_dim=states, conv_kernel=kernel, heads=config.n_mamba_heads)


def zamba_hybrid(config: Config, sizes: CacheSizes, kernels: Kernels, index: int) -> CacheLayer:
    """Return a block of attention with shared weights, then Mamba; keys and values are the layer's own.

    Raises CheckpointError where the block does not take the hidden states beside the embeddings.
    """
    if config.attention_hidden_size != 2 * config.hidden_size:
        raise CheckpointError(
            f"config.json says attention_hidden_size = {config.attention_hidden_size}, expected 2 * hidden_size = "
            f"{2 * config.hidden_size}. {ADVICE}"
        )
    heads, dim = config.num_key_value_heads, config.attention_head_dim
    attention = unwindowed(sizes, kernels, kv_heads=heads, head_dim=dim)
    return CompositeLayer(sizes, kernels, {"attention": attention, "mamba": zamba_mamba(config, sizes, kernels, index)})


MAMBA = Family(layers={"linear_attention": mamba})

FAMILIES: Mapping[str, Family] = {
    "falcon_mamba": MAMBA,
    "jamba": Family(layers={"full_attention": full_attention, "linear_attention": jamba_mamba}),
    "mamba": MAMBA,
    "zamba": Family(layers={"linear_attention": zamba_mamba, "hybrid": zamba_hybrid}),
}
