"""What all attention layers have in common: keys and values of earlier tokens, and one way to attend over them."""

from __future__ import annotations

from torch import Tensor

from hybridge.cache.block import Block
from hybridge.cache.kernels import Scoring
from hybridge.cache.layer import CacheLayer


class AttentionLayer(CacheLayer):
    """keys [B, R, G, D] and values [B, R, G, V]; R rows, G key/value heads, D head dim, V value dim."""

    keys: Tensor
    values: Tensor
    window: int | None = None

    def attend(self, query: Tensor, key: Tensor, value: Tensor, block: Block, scoring: Scoring) -> Tensor:
        """Take the block's key [B, T, G, D] and value [B, T, G, V] in and attend with query [B, T, H, D]; [B, T, H, V]."""
        raise NotImplementedError

    def append(self, key: Tensor, value: Tensor, block: Block) -> None:
        """Take a committed block's key and value in without attending."""
        raise NotImplementedError

    def recent(self, length: int) -> tuple[Tensor, Tensor]:
        """The keys and values [B, N, G, ...] that a token at position ``length`` may see before itself; for eager use."""
        raise NotImplementedError
