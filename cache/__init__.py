"""Export-friendly static state for hybrid language models. Each name is imported at its first use."""

from typing import TYPE_CHECKING

from hybridge.cache.imports import deferred

if TYPE_CHECKING:
    from hybridge.cache.block import Block, CacheSizes
    from hybridge.cache.defaults import DEFAULT_MAX_SEQ_LEN
    from hybridge.cache.hybrid_cache import HybridCache, Snapshot
    from hybridge.cache.layers.layer import CacheLayer

__all__ = ["DEFAULT_MAX_SEQ_LEN", "Block", "CacheLayer", "CacheSizes", "HybridCache", "Snapshot"]

if not TYPE_CHECKING:  # else a type checker would believe in every name
    __getattr__ = deferred(
        __name__,
        {
            "DEFAULT_MAX_SEQ_LEN": "hybridge.cache.defaults",
            "Block": "hybridge.cache.block",
            "CacheLayer": "hybridge.cache.layers.layer",
            "CacheSizes": "hybridge.cache.block",
            "HybridCache": "hybridge.cache.hybrid_cache",
            "Snapshot": "hybridge.cache.hybrid_cache",
        },
    )
