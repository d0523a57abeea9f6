"""Full attention over keys and values of 8 bits: a quarter of the memory, and of what a long text costs to read.

Each head of a row has its own float32 scale, max |x| / 127, so that a row is rounded once, when it is written, and never
again. A rounded row differs from the exact one by at most 1/254 of its largest element.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from hybridge.cache.block import Block, CacheSizes
from hybridge.cache.layers.attention import AttentionLayer
from hybridge.cache.operations.kernels import Kernels, Scoring, Visible
from hybridge.cache.operations.quantized_rows import BLOCK, LANES, QUAD, QuantizedRows


class QuantizedAttentionLayer(AttentionLayer):
    """keys, key_scales, values and value_scales as ``QuantizedRows`` has them; ``sizes.rows`` rows and up to 63 more."""

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
        block.shared("updated", lambda: self.kernels.write_quantized(self.rows, key, value, block), of=self)
        return self.kernels.attend_quantized(query, self.rows, self.value_dim, block, scoring)

    def look(self, query: Tensor, block: Block, scoring: Scoring) -> Tensor:
        return self.kernels.attend_quantized(query, self.rows, self.value_dim, block, scoring)

    def update(self, key: Tensor, value: Tensor, block: Block) -> tuple[Tensor, Tensor, Visible | None]:
        self.kernels.write_quantized(self.rows, key, value, block)
        return *self.rows.dense(self.head_dim, self.value_dim), None

    def seen(self, key: Tensor, value: Tensor, block: Block, length: int | Tensor) -> tuple[Tensor, Tensor]:
        keys, values, _ = self.update(key, value, block)
        rows = self.seen_sizes(block.length, length)[0]
        return keys[:, :rows], values[:, :rows]

    def seen_sizes(self, tokens: int, length: int | Tensor) -> tuple[int, int | Tensor]:
        return (length + tokens if isinstance(length, int) else self.sizes.rows), 0
