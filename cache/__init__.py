"""Keep the state of hybrid language models in fixed buffers, for eager use and for export.

Uses torch alone, and nothing of ``hybridge.export`` and ``hybridge.runtime``. Each name is imported at its first use, so that
the command line starts without torch.
"""

from typing import TYPE_CHECKING

from hybridge.imports import deferred

if TYPE_CHECKING:
    from hybridge.cache.block import Block, CacheSizes
    from hybridge.cache.hybrid_cache import HybridCache, Snapshot
    from hybridge.cache.layers.layer import CacheLayer

__all__ = ["DEFAULT_MAX_SEQ_LEN", "Block", "CacheLayer", "CacheSizes", "HybridCache", "Snapshot"]

DEFAULT_MAX_SEQ_LEN = 2048
"""Tokens that a cache holds if the caller does not say."""

if not TYPE_CHECKING:  # otherwise a type checker would accept every name
    __getattr__ = deferred(
        __name__,
        {
            "hybridge.cache.block": ("Block", "CacheSizes"),
            "hybridge.cache.hybrid_cache": ("HybridCache", "Snapshot"),
            "hybridge.cache.layers.layer": ("CacheLayer",),
        },
    )
