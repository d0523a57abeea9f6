"""RecurrentGemma: RG-LRU between sliding attention."""

from __future__ import annotations

from collections.abc import Mapping

from hybridge.cache.block import CacheSizes
from hybridge.cache.errors import CheckpointError
from hybridge.cache.families.attention import sliding_attention
from hybridge.cache.families.checks import ADVICE, check_positive
from hybridge.cache.families.family import Config, Family
from hybridge.cache.layers.layer import CacheLayer
from hybridge.cache.layers.rg_lru import RgLruLayer
from hybridge.cache.operations.kernels import Kernels


def rg_lru(config: Config, sizes: CacheSizes, kernels: Kernels, index: int) -> CacheLayer:
    """Raises CheckpointError where the heads of the gates do not fill the unit."""
    check_positive(config, "lru_width", "conv1d_width", "num_attention_heads")
    if config.lru_width % config.num_attention_heads:
        raise CheckpointError(
            f"config.json says lru_width = {config.lru_width} and num_attention_heads = {config.num_attention_heads}, expected "
            f"heads that divide the width. {ADVICE}"
        )
    return RgLruLayer(sizes, kernels, channels=config.lru_width, conv_kernel=config.conv1d_width)


FAMILIES: Mapping[str, Family] = {
    "recurrent_gemma": Family(layers={"linear_attention": rg_lru, "sliding_attention": sliding_attention})
}
