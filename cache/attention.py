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

    # For transformers' own attention, which wants keys in the order of their positions. length is the committed length: a
    # number in eager use, where shapes follow it, and a tensor under torch.compile, where every shape is static.

    def seen(self, key: Tensor, value: Tensor, block: Block, length: int | Tensor) -> tuple[Tensor, Tensor]:
        """Take the block in; returns keys and values [B, N, G, ...] that its tokens may see, in their order."""
        raise NotImplementedError

    def seen_sizes(self, tokens: int, length: int | Tensor) -> tuple[int, int | Tensor]:
        """N of ``seen`` for a block of so many tokens, and the position of the first."""
        raise NotImplementedError
