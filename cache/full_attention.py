"""Full attention: keys and values in fixed rows, one for each position.

Rolling back is only a smaller length, because rows past the length are not seen; so nothing is staged and a snapshot copies
nothing.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from hybridge.cache.block import Block, CacheSizes
from hybridge.cache.kernels import Kernels
from hybridge.cache.layer import CacheLayer


class FullAttentionLayer(CacheLayer):
    """Keys and values [B, R, G, D]; R = ``sizes.rows``, G key/value heads, D head dim."""

    kind: ClassVar[str] = "full_attention"

    keys: Tensor
    values: Tensor

    def __init__(self, sizes: CacheSizes, kernels: Kernels, *, kv_heads: int, head_dim: int) -> None:
        super().__init__(sizes, kernels)
        self.add_positional("keys", kv_heads, head_dim, dtype=sizes.dtype)
        self.add_positional("values", kv_heads, head_dim, dtype=sizes.dtype)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, block: Block, scale: float) -> Tensor:
        """Write the block's keys and values [B, T, G, D], then attend with query [B, T, H, D]; returns [B, T, H, D]."""
        self.write(key, value, block)
        return self.kernels.attend(query, self.keys, self.values, block, scale)

    def write(self, key: Tensor, value: Tensor, block: Block) -> None:
        """Put the block's keys and values [B, T, G, D] into their rows."""
        self.kernels.write_rows(self.keys, key, block)
        self.kernels.write_rows(self.values, value, block)
