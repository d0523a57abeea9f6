"""Full attention: keys and values in fixed rows, one for each position.

Rolling back is only a smaller length, because rows past the length are not seen; so nothing is staged and a snapshot copies
nothing.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from hybridge.cache.block import Block, CacheSizes
from hybridge.cache.layers.attention import AttentionLayer
from hybridge.cache.operations.kernels import Kernels, Visible


class FullAttentionLayer(AttentionLayer):
    """R = ``sizes.rows``: row r holds position r, in ``dtype``; in that of ``sizes`` if it is left out."""

    kind: ClassVar[str] = "full_attention"

    def __init__(
        self,
        sizes: CacheSizes,
        kernels: Kernels,
        *,
        kv_heads: int,
        head_dim: int,
        value_dim: int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(sizes, kernels)
        self._rounded_to = dtype
        self.add_positional("keys", kv_heads, head_dim, dtype=dtype or sizes.dtype)
        self.add_positional("values", kv_heads, value_dim or head_dim, dtype=dtype or sizes.dtype)

    @property
    def rounded_to(self) -> torch.dtype | None:
        return self._rounded_to

    def update(self, key: Tensor, value: Tensor, block: Block) -> tuple[Tensor, Tensor, Visible | None]:
        self.kernels.write_rows(self.keys, key, block)
        self.kernels.write_rows(self.values, value, block)
        return self.keys, self.values, None

    def seen(self, key: Tensor, value: Tensor, block: Block, length: int | Tensor) -> tuple[Tensor, Tensor]:
        self.update(key, value, block)
        rows = self.seen_sizes(block.length, length)[0]
        return self.keys[:, :rows].to(key.dtype), self.values[:, :rows].to(value.dtype)

    def seen_sizes(self, tokens: int, length: int | Tensor) -> tuple[int, int | Tensor]:
        return (length + tokens if isinstance(length, int) else self.sizes.rows), 0
