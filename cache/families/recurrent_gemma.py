"""RecurrentGemma: RG-LRU between sliding attention."""

from __future__ import annotations

from collections.abc import Mapping

from hybridge.cache.block import CacheSizes
from hybridge.cache.families.attention import sliding_attention
from hybridge.cache.families.family import Config, Family
from hybridge.cache.kernels import Kernels
from hybridge.cache.layer import CacheLayer
from hybridge.cache.rg_lru import RgLruLayer


def rg_lru(config: Config, sizes: CacheSizes, kernels: Kernels, index: int) -> CacheLayer:
    return RgLruLayer(sizes, kernels, channels=config.lru_width, conv_kernel=config.conv1d_width)


FAMILIES: Mapping[str, Family] = {
    "recurrent_gemma": Family(layers={"linear_attention": rg_lru, "sliding_attention": sliding_attention})
}
