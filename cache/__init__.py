"""Export-friendly static state for hybrid language models."""

from hybridge.cache.block import Block, CacheSizes
from hybridge.cache.hybrid_cache import DEFAULT_MAX_SEQ_LEN, HybridCache, Snapshot
from hybridge.cache.layers.layer import CacheLayer

__all__ = ["DEFAULT_MAX_SEQ_LEN", "Block", "CacheLayer", "CacheSizes", "HybridCache", "Snapshot"]
