"""Full attention over keys and values of 8 bits: a quarter of the memory, and of what a long text costs to read.

Each head of a row has its own float32 scale, max |x| / 127, so that a row is rounded once, when it is written, and never
again. A rounded row differs from the exact one by at most 1/254 of its largest element.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from hybridge.cache.attention import AttentionLayer
from hybridge.cache.block import Block, CacheSizes
from hybridge.cache.kernels import Kernels, Scoring


class QuantizedAttentionLayer(AttentionLayer):
    """keys, values int8 [B, R, G, D] and [B, R, G, V]; key_scales, value_scales float32 [B, R, G]; R = ``sizes.rows``."""

    kind: ClassVar[str] = "quantized_attention"

    key_scales: Tensor
    value_scales: Tensor

    def __init__(
        self, sizes: CacheSizes, kernels: Kernels, *, kv_heads: int, head_dim: int, value_dim: int | None = None
    ) -> None:
        super().__init__(sizes, kernels)
        self.add_positional("keys", kv_heads, head_dim, dtype=torch.int8)
        self.add_positional("values", kv_heads, value_dim or head_dim, dtype=torch.int8)
        self.add_positional("key_scales", kv_heads)
        self.add_positional("value_scales", kv_heads)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, block: Block, scoring: Scoring) -> Tensor:
        block.shared(("taken", id(self)), lambda: self._write(key, value, block))
        return self.kernels.attend_quantized(query, self.keys, self.key_scales, self.values, self.value_scales, block, scoring)

    def _write(self, key: Tensor, value: Tensor, block: Block) -> None:
        self.kernels.write_quantized_rows(self.keys, self.key_scales, key, block)
        self.kernels.write_quantized_rows(self.values, self.value_scales, value, block)
