"""Families with Kimi delta attention beside latent attention: Kimi Linear and Ling 3."""

from __future__ import annotations

from collections.abc import Mapping

from hybridge.cache.block import CacheSizes
from hybridge.cache.errors import CheckpointError
from hybridge.cache.families.checks import check_positive
from hybridge.cache.families.family import Config, Family
from hybridge.cache.layers.gated_delta_net import KimiDeltaAttentionLayer
from hybridge.cache.layers.latent_attention import LatentAttentionLayer
from hybridge.cache.layers.layer import CacheLayer
from hybridge.cache.operations.kernels import Kernels


def kimi_delta_attention(config: Config, sizes: CacheSizes, kernels: Kernels, index: int) -> CacheLayer:
    check_positive(config, "linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim")
    return KimiDeltaAttentionLayer(
        sizes,
        kernels,
        heads=config.linear_num_heads,
        head_dim=config.linear_head_dim,
        conv_kernel=config.linear_conv_kernel_dim,
    )


def latent_attention(config: Config, sizes: CacheSizes, kernels: Kernels, index: int) -> CacheLayer:
    heads = config.num_attention_heads
    if config.num_key_value_heads != heads:
        raise CheckpointError(
            f"config.json says num_key_value_heads = {config.num_key_value_heads}, expected num_attention_heads = {heads}: "
            "latent attention expands keys and values for every query head. Correct config.json."
        )
    return LatentAttentionLayer(sizes, kernels, rank=config.kv_lora_rank, shared_dim=config.qk_rope_head_dim)


KIMI_DELTA = Family(layers={"full_attention": latent_attention, "linear_attention": kimi_delta_attention})

FAMILIES: Mapping[str, Family] = {"bailing_hybrid": KIMI_DELTA, "kimi_linear": KIMI_DELTA}
