"""Keep keys and values of earlier tokens by position, in 32, 16 or 8 bits, and attend over them.

A rollback is only a smaller length, because rows past the length are not seen. So nothing is staged, and a snapshot copies
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from hybridge.cache.block import Block, CacheSizes
from hybridge.cache.layers.layer import CacheLayer
from hybridge.cache.operations.kernels import Kernels, Scoring, Visible, past_and_block
from hybridge.cache.operations.quantized_rows import BLOCK, LANES, QUAD, QuantizedRows


class AttentionLayer(CacheLayer):
    """keys [B, R, G, D] and values [B, R, G, V]; R rows, G key/value heads, D head dim, V value dim."""

    keys: Tensor
    values: Tensor
    window: int | None = None
    keeps: ClassVar[bool] = True  # keys and values of its own

    def attend(self, query: Tensor, key: Tensor, value: Tensor, block: Block, scoring: Scoring) -> Tensor:
        """Keep the block's key [B, T, G, D] and value [B, T, G, V] and attend with query [B, T, H, D]. Returns [B, T, H, V].

        Another query of the same block attends over the same keys.
        """
        keys, values, visible = block.shared("updated", lambda: self.update(key, value, block), of=self)
        return self.kernels.attend(query, keys, values, block, scoring, visible)

    def update(self, key: Tensor, value: Tensor, block: Block) -> tuple[Tensor, Tensor, Visible | None]:
        """Keep the block's key and value; return all keys and values to attend over, and which token sees which."""
        raise NotImplementedError

    def attend_only(self, query: Tensor, block: Block, scoring: Scoring) -> Tensor:
        """Attend with query [B, T, H, D] over the rows up to the block's positions, and keep nothing. Returns [B, T, H, V].

        A window reaches ``sizes.before_window`` positions farther back here.
        """
        return self.kernels.attend(query, self.keys, self.values, block, scoring, self.past_mask(block))

    def past_mask(self, block: Block) -> Visible | None:
        """Return the rows that ``attend_only`` sees; None if row r holds position r."""
        return None

    # For transformers' own attention, which wants keys in the order of their positions. length is the committed length: a
    # number in eager use, where shapes follow it, and a tensor under torch.compile, where every shape is static.

    def visible_keys(self, key: Tensor, value: Tensor, block: Block, length: int | Tensor) -> tuple[Tensor, Tensor]:
        """Keep the block; return keys and values [B, N, G, ...] that its tokens may see, in the order of their positions."""
        raise NotImplementedError

    def visible_sizes(self, tokens: int, length: int | Tensor) -> tuple[int, int | Tensor]:
        """Return N of ``visible_keys`` for a block of that many tokens, and the position of the first key."""
        return (length + tokens if isinstance(length, int) else self.sizes.rows), 0


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
        return self.keys, self.values, past_and_block(block, self.keys.shape[1])

    def visible_keys(self, key: Tensor, value: Tensor, block: Block, length: int | Tensor) -> tuple[Tensor, Tensor]:
        self.update(key, value, block)
        rows = self.visible_sizes(block.length, length)[0]
        return self.keys[:, :rows].to(key.dtype), self.values[:, :rows].to(value.dtype)


class QuantizedAttentionLayer(AttentionLayer):
    """Full attention over keys and values of 8 bits: a quarter of the memory, and of what a long text costs to read.

    keys, key_scales, values and value_scales are those of ``QuantizedRows``, ``sizes.rows`` rows and up to 63 more. Each head
    of a row has its own float32 scale, max |x| / 127, and is rounded once, when it is written: it differs from the exact one by
    at most 1/254 of its largest element.
    """

    kind: ClassVar[str] = "quantized_attention"

    key_scales: Tensor
    value_scales: Tensor

    def __init__(
        self, sizes: CacheSizes, kernels: Kernels, *, kv_heads: int, head_dim: int, value_dim: int | None = None
    ) -> None:
        super().__init__(sizes, kernels)
        self.head_dim, self.value_dim = head_dim, value_dim or head_dim
        blocks = -(-sizes.rows // BLOCK)
        for name, width in (
            ("keys", self.head_dim + -self.head_dim % QUAD),
            ("values", self.value_dim + -self.value_dim % LANES),
        ):
            self.add_positional(name, kv_heads, width, BLOCK, dtype=torch.int8, rows=blocks)
        for name in ("key_scales", "value_scales"):
            self.add_positional(name, kv_heads, BLOCK, rows=blocks)

    @property
    def rounded_to(self) -> torch.dtype:
        return torch.int8

    @property
    def rows(self) -> QuantizedRows:
        """Return the layer's buffers."""
        return QuantizedRows(keys=self.keys, key_scales=self.key_scales, values=self.values, value_scales=self.value_scales)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, block: Block, scoring: Scoring) -> Tensor:
        if block.bidirectional == "everywhere":  # the operators for 8 bits are causal
            return super().attend(query, key, value, block, scoring)
        block.shared("updated", lambda: self.kernels.write_quantized(self.rows, key, value, block), of=self)
        return self.kernels.attend_quantized(query, self.rows, self.value_dim, block, scoring)

    def attend_only(self, query: Tensor, block: Block, scoring: Scoring) -> Tensor:
        return self.kernels.attend_quantized(query, self.rows, self.value_dim, block, scoring)

    def update(self, key: Tensor, value: Tensor, block: Block) -> tuple[Tensor, Tensor, Visible | None]:
        self.kernels.write_quantized(self.rows, key, value, block)
        keys, values = self.rows.dense(self.head_dim, self.value_dim)
        return keys, values, past_and_block(block, keys.shape[1])

    def visible_keys(self, key: Tensor, value: Tensor, block: Block, length: int | Tensor) -> tuple[Tensor, Tensor]:
        keys, values, _ = self.update(key, value, block)
        rows = self.visible_sizes(block.length, length)[0]
        return keys[:, :rows], values[:, :rows]
