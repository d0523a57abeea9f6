"""Keep keys and values of earlier tokens and attend over them: the base of all attention layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from hybridge.cache.block import Block, CacheSizes
from hybridge.cache.layers.layer import CacheLayer
from hybridge.cache.operations.kernels import Kernels, Scoring, Visible


class AttentionLayer(CacheLayer):
    """keys [B, R, G, D] and values [B, R, G, V]; R rows, G key/value heads, D head dim, V value dim."""

    keys: Tensor
    values: Tensor
    window: int | None = None
    keeps: ClassVar[bool] = True  # keys and values of its own

    def attend(self, query: Tensor, key: Tensor, value: Tensor, block: Block, scoring: Scoring) -> Tensor:
        """Take the block's key [B, T, G, D] and value [B, T, G, V] in and attend with query [B, T, H, D]; [B, T, H, V].

        Another query of the same block attends over the same keys.
        """
        keys, values, visible = block.shared("updated", lambda: self.update(key, value, block), of=self)
        return self.kernels.attend(query, keys, values, block, scoring, visible)

    def update(self, key: Tensor, value: Tensor, block: Block) -> tuple[Tensor, Tensor, Visible | None]:
        """Take the block's key and value in; returns all the keys and values to attend over, and who sees which."""
        raise NotImplementedError

    def look(self, query: Tensor, block: Block, scoring: Scoring) -> Tensor:
        """Attend with query [B, T, H, D] over what is kept up to the block's positions, and take nothing in; [B, T, H, V].

        Of a window, ``sizes.behind_window`` positions more than its own tokens see.
        """
        return self.kernels.attend(query, self.keys, self.values, block, scoring, self.kept(block))

    def kept(self, block: Block) -> Visible | None:
        """Return which rows ``look`` sees; none where row r holds position r."""
        return None

    # For transformers' own attention, which wants keys in the order of their positions. length is the committed length: a
    # number in eager use, where shapes follow it, and a tensor under torch.compile, where every shape is static.

    def seen(self, key: Tensor, value: Tensor, block: Block, length: int | Tensor) -> tuple[Tensor, Tensor]:
        """Take the block in; returns keys and values [B, N, G, ...] that its tokens may see, in their order."""
        raise NotImplementedError

    def seen_sizes(self, tokens: int, length: int | Tensor) -> tuple[int, int | Tensor]:
        """Return N of ``seen`` for a block of so many tokens, and the position of the first."""
        raise NotImplementedError


class SharedAttentionLayer(AttentionLayer):
    """Attends over the keys and values of an earlier layer (Gemma 3n, Gemma 4) and keeps none of its own."""

    kind: ClassVar[str] = "shared_attention"
    keeps: ClassVar[bool] = False

    def __init__(self, sizes: CacheSizes, kernels: Kernels, *, source: int) -> None:
        super().__init__(sizes, kernels)
        self.source = source

    @property
    def rounded_to(self) -> torch.dtype | None:
        return self._source.rounded_to

    def connect(self, layers: Sequence[CacheLayer]) -> None:
        self._sources = (layers[self.source],)  # in a tuple, for not to own it

    @property
    def _source(self) -> AttentionLayer:
        source = self._sources[0]
        assert isinstance(source, AttentionLayer)
        return source

    def attend(self, query: Tensor, key: Tensor, value: Tensor, block: Block, scoring: Scoring) -> Tensor:
        return self._source.attend(query, key, value, block, scoring)
