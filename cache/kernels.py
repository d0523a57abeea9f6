"""The operations on state that a runtime may do better than plain operators can.

Layers call them through ``Kernels``, so the same layer runs in eager mode, exports to core operators (``CoreKernels``) and
exports to a runtime's own operators (``hybridge.export.llm_kernels``).

Axes: B batch, T tokens, R rows of a buffer, H query heads, G key/value heads, D head dim, V value dim, K key dim.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from hybridge.cache.block import Block
from hybridge.cache.gated_delta_rule import gated_delta_rule_chunked, gated_delta_rule_naive
from hybridge.cache.kimi_delta_rule import kimi_delta_rule_chunked, kimi_delta_rule_naive


@dataclass(frozen=True, kw_only=True)
class Scoring:
    """How attention scores are made: ``softcap(scale q k) + bias``, then a softmax over the visible keys and the sink.

    softcap c is ``c tanh(x / c)``; sinks, [H] or [B, H, T], is one more score that takes a share and has no value; bias maps
    the positions int64 [R] of the keys to what is added, broadcast to [B, H, T, R].
    """

    scale: float
    softcap: float | None = None
    sinks: Tensor | None = None
    bias: Callable[[Tensor], Tensor] | None = None

    @property
    def is_plain(self) -> bool:
        """Nothing but a scale."""
        return self.softcap is None and self.sinks is None and self.bias is None


@dataclass(frozen=True, kw_only=True)
class Visible:
    """held: int64 [R], the position whose key each row holds; mask: bool [T, R], which rows each token sees."""

    held: Tensor
    mask: Tensor

    @property
    def additive(self) -> Tensor:
        """float32 [T, R] to add to scores: 0 where visible, else -inf."""
        return torch.where(self.mask, 0.0, float("-inf"))


def causal(block: Block, rows: int) -> Visible:
    """Row r holds position r, and each token sees its own position and those before."""
    held = torch.arange(rows)
    return block.shared(("causal", rows), lambda: Visible(held=held, mask=held <= block.positions[:, None]))


class Kernels(Protocol):
    """State operations; every method may assume contiguous buffers."""

    def write_rows(self, buffer: Tensor, rows: Tensor, block: Block) -> None:
        """Put rows [B, T, G, D] into buffer [B, R, G, D] in place, from row ``block.start`` on."""

    def write_ring(self, buffer: Tensor, rows: Tensor, slots: Tensor) -> None:
        """Put rows [B, T, G, D] into buffer [B, R, G, D] in place, at ``slots`` (int64 [T], all different)."""

    def attend(
        self, query: Tensor, keys: Tensor, values: Tensor, block: Block, scoring: Scoring, visible: Visible | None = None
    ) -> Tensor:
        """Attention of query [B, T, H, D] over keys [B, R, G, D] and values [B, R, G, V]; returns [B, T, H, V].

        Without ``visible`` row r holds position r and each token sees the rows up to its own (``causal``).
        """

    def write_quantized_rows(self, buffer: Tensor, scales: Tensor, rows: Tensor, block: Block) -> None:
        """As ``write_rows``, into int8 rows [B, R, G, D] with a scale for each head in scales [B, R, G]."""

    def attend_quantized(
        self,
        query: Tensor,
        keys: Tensor,
        key_scales: Tensor,
        values: Tensor,
        value_scales: Tensor,
        block: Block,
        scoring: Scoring,
    ) -> Tensor:
        """As ``attend`` over such rows; row r holds position r."""

    def gated_delta_rule(
        self, query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, beta: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor]:
        """See ``gated_delta_rule`` for log_decay [B, H, T], one a head, and ``kimi_delta_rule`` for [B, H, T, K]."""

    def write_slot(self, slots: Tensor, value: Tensor, slot: Tensor) -> None:
        """Put value [1, 1, A, B] into slots [1, N, A, B] in place at index ``slot``, int64 [1]."""


class CoreKernels:
    """Core operators only: any backend, any build."""

    def write_rows(self, buffer: Tensor, rows: Tensor, block: Block) -> None:
        self.write_ring(buffer, rows, block.positions)

    def write_ring(self, buffer: Tensor, rows: Tensor, slots: Tensor) -> None:
        # One flat index on one dimension is the form that runtimes do in place.
        torch.ops.aten.index_put_(buffer, [None, slots], rows)

    def attend(
        self, query: Tensor, keys: Tensor, values: Tensor, block: Block, scoring: Scoring, visible: Visible | None = None
    ) -> Tensor:
        B, T, H, D = query.shape
        R, G = keys.shape[1:3]
        visible = visible or causal(block, R)
        # Rows that nothing was written to may hold anything, NaN included: a weight of 0 alone would not hide them.
        seen = block.shared(("seen", id(visible)), lambda: visible.mask.any(0)[:, None, None])
        grouped = query.transpose(1, 2).reshape(B, G, H // G, T, D)
        scores = grouped @ keys.permute(0, 2, 3, 1).unsqueeze(2) * scoring.scale
        weights = _softmax(scores, scoring, visible)
        out = weights @ torch.where(seen, values, 0.0).transpose(1, 2).unsqueeze(2)
        return out.reshape(B, H, T, values.shape[-1]).transpose(1, 2)

    def write_quantized_rows(self, buffer: Tensor, scales: Tensor, rows: Tensor, block: Block) -> None:
        quanta, steps = quantize_rows(rows)
        self.write_rows(buffer, quanta, block)
        self.write_rows(scales, steps, block)

    def attend_quantized(
        self,
        query: Tensor,
        keys: Tensor,
        key_scales: Tensor,
        values: Tensor,
        value_scales: Tensor,
        block: Block,
        scoring: Scoring,
    ) -> Tensor:
        dense = [rows * scales.unsqueeze(-1) for rows, scales in ((keys, key_scales), (values, value_scales))]
        return self.attend(query, *dense, block, scoring)

    def gated_delta_rule(
        self, query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, beta: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor]:
        naive, chunked = gated_delta_rule_naive, gated_delta_rule_chunked
        if log_decay.dim() == 4:
            naive, chunked = kimi_delta_rule_naive, kimi_delta_rule_chunked
        # For one token the definition is the shorter form.
        rule = naive if query.shape[2] == 1 else chunked
        return rule(query, key, value, log_decay, beta, state)

    def write_slot(self, slots: Tensor, value: Tensor, slot: Tensor) -> None:
        torch.ops.aten.index_put_(slots, [None, slot], value)


def quantize_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    """int8 rows and float32 scales [..., G] of rows [..., G, D]: round(x / scale), scale = max |x| / 127 over a head."""
    largest = rows.abs().amax(-1, keepdim=True)
    inverse = torch.where(largest > 0, 127.0 / largest, 0.0)
    return (rows * inverse).round().to(torch.int8), (largest * (1.0 / 127.0)).squeeze(-1)


def _softmax(scores: Tensor, scoring: Scoring, visible: Visible) -> Tensor:
    """Attention weights [B, G, H / G, T, R] of scaled scores of the same shape."""
    groups = scores.shape[1:3]
    if scoring.softcap is not None:
        scores = (scores / scoring.softcap).tanh() * scoring.softcap
    if scoring.bias is not None:
        scores = scores + scoring.bias(visible.held).unflatten(1, groups)
    scores = torch.where(visible.mask, scores, float("-inf"))
    if scoring.sinks is None:
        return scores.softmax(-1)
    sinks = scoring.sinks[:, None] if scoring.sinks.dim() == 1 else scoring.sinks
    sinks = sinks.unflatten(-2, groups).unsqueeze(-1).expand(*scores.shape[:-1], 1)
    return torch.cat([scores, sinks], dim=-1).softmax(-1)[..., :-1]
