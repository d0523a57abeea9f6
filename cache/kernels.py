"""The four operations on state that a runtime may do better than plain operators can.

Layers call them through ``Kernels``, so the same layer runs in eager mode, exports to core operators (``CoreKernels``) and
exports to a runtime's own operators (``hybridge.export.llm_kernels``).

Axes: B batch, T tokens, R rows of a buffer, H query heads, G key/value heads, D head dim, K key dim, V value dim.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from hybridge.cache.block import Block
from hybridge.cache.gated_delta_rule import gated_delta_rule_chunked, gated_delta_rule_naive


class Kernels(Protocol):
    """State operations; every method may assume float32 and contiguous buffers."""

    def write_rows(self, buffer: Tensor, rows: Tensor, block: Block) -> None:
        """Put rows [B, T, G, D] into buffer [B, R, G, D] in place, from row ``block.start`` on."""

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, block: Block, scale: float) -> Tensor:
        """Causal attention of query [B, T, H, D] over the rows of keys, values [B, R, G, D] up to its own position."""

    def gated_delta_rule(
        self, query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, beta: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor]:
        """See ``hybridge.cache.gated_delta_rule``."""

    def write_slot(self, slots: Tensor, value: Tensor, slot: Tensor) -> None:
        """Put value [1, 1, A, B] into slots [1, N, A, B] in place at index ``slot``, int64 [1]."""


class CoreKernels:
    """Core operators only: any backend, any build."""

    def write_rows(self, buffer: Tensor, rows: Tensor, block: Block) -> None:
        # One flat index on one dimension is the form that runtimes do in place.
        torch.ops.aten.index_put_(buffer, [None, block.positions], rows)

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, block: Block, scale: float) -> Tensor:
        B, T, H, D = query.shape
        R, G = keys.shape[1:3]
        visible = torch.arange(R) <= block.positions[:, None]
        # Rows that nothing was written to may hold anything, NaN included: a weight of 0 alone would not hide them.
        written = (torch.arange(R) < block.start + T)[:, None, None]
        grouped = query.transpose(1, 2).reshape(B, G, H // G, T, D)
        scores = grouped @ keys.permute(0, 2, 3, 1).unsqueeze(2) * scale
        weights = torch.where(visible, scores, float("-inf")).softmax(-1)
        out = weights @ torch.where(written, values, 0.0).transpose(1, 2).unsqueeze(2)
        return out.reshape(B, H, T, D).transpose(1, 2)

    def gated_delta_rule(
        self, query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, beta: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor]:
        # For one token the definition is the shorter form.
        rule = gated_delta_rule_naive if query.shape[2] == 1 else gated_delta_rule_chunked
        return rule(query, key, value, log_decay, beta, state)

    def write_slot(self, slots: Tensor, value: Tensor, slot: Tensor) -> None:
        torch.ops.aten.index_put_(slots, [None, slot], value)
