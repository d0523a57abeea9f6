"""The operations on state that a runtime may do better than plain operators can.

Layers call them through ``Kernels``, so the same layer runs in eager mode, exports to core operators (``CoreKernels``) and
exports to a runtime's own operators (``hybridge.export.kernel_sets.llm``).

Axes: B batch, T tokens, R rows of a buffer, H query heads, G key/value heads, D head dim, V value dim, K key dim.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from hybridge.cache.block import Block
from hybridge.cache.operations.conv_window import ShortConvolution
from hybridge.cache.operations.core_recurrences import CoreRecurrences
from hybridge.cache.operations.drafting import CoreDrafting, DraftingKernels
from hybridge.cache.operations.quantized_rows import QuantizedRows
from hybridge.cache.operations.ring import Ring, newest_rows
from hybridge.cache.recurrences.delta_gates import DeltaGates, DeltaStaged
from hybridge.cache.recurrences.state_space import LinearAttention, LinearStaged, ScanStaged, Selected, StepSize


@dataclass(frozen=True, kw_only=True)
class Scoring:
    """Attention scores: ``softcap(scale q k) + bias``, then a softmax over the visible keys and the sink.

    softcap c is ``c tanh(x / c)``; sinks, [H] or [B, H, T], is one more score that takes a share and has no value; bias maps
    the positions int64 [R] of the keys to what is added, broadcast to [B, H, T, R].
    """

    scale: float
    softcap: float | None = None
    sinks: Tensor | None = None
    bias: Callable[[Tensor], Tensor] | None = None

    @property
    def is_plain(self) -> bool:
        """Return whether scores are nothing but scaled."""
        return self.softcap is None and self.sinks is None and self.bias is None


@dataclass(frozen=True, kw_only=True)
class Visible:
    """held: int64 [R], the position whose key each row holds; mask: bool [T, R], which rows each token sees.

    ring: how both follow from the block's start, where they do.
    """

    held: Tensor
    mask: Tensor
    ring: Ring | None = None

    @property
    def additive(self) -> Tensor:
        """Return float32 [T, R] to add to scores: 0 where visible, else -inf."""
        return torch.where(self.mask, 0.0, float("-inf"))


def causal(block: Block, rows: int) -> Visible:
    """Return who sees what if row r holds position r: each token sees its own position and those before."""
    held = torch.arange(rows)
    return block.shared(("causal", rows), lambda: Visible(held=held, mask=held <= block.positions[:, None]))


class RecurrentKernels(Protocol):
    """Operations on recurrent state. Each runs a block, and has a twin that commits.

    A block changes the state in place, by its first ``block.count`` tokens; a tentative one leaves the state alone and fills
    the staged buffers for the commit, whose ``count`` (int64 [1]) is how many of them are accepted. A count of 0 leaves every
    bit; NaN in tokens that do not count never reaches the state. What is staged is the kernels' own.

    Axes: S staged tokens, C channels, W conv window, N key dim, P value dim; inputs have tokens as rows, [B, T, ...].
    """

    def convolve(
        self, x: Tensor, convolution: ShortConvolution, window: Tensor, staged: Tensor, block: Block, start: int = 0
    ) -> Tensor:
        """Convolve x [B, T, X] from channel ``start`` on behind window [B, W, C]; staged [B, S, C]. Gives [B, T, C]."""

    def extend_window(self, x: Tensor, window: Tensor, staged: Tensor, block: Block) -> Tensor:
        """Return window and x [B, T, C] as [B, W + T, C], for what ``convolve`` cannot do; the window then takes x in."""

    def shift(self, window: Tensor, x: Tensor, count: Tensor) -> None:
        """Take the first ``count`` of x [B, S, C] into window [B, W, C]: the commit of ``convolve`` and ``extend_window``."""

    def delta_rule(self, mixed: Tensor, gates: DeltaGates, state: Tensor, staged: DeltaStaged, block: Block) -> Tensor:
        """Run the delta rule of ``gated_delta_rule``, or of ``kimi_delta_rule`` if gates are by channel.

        mixed [B, T, 2 Hk K + H V] is queries, keys and values, not normalized; state [B, H, K, V]. Gives [B, T, H, V].
        """

    def commit_delta_rule(self, state: Tensor, staged: DeltaStaged, count: Tensor) -> None:
        """Commit what ``delta_rule`` staged."""

    def linear_attention(
        self, mixed: Tensor, steps: StepSize | None, weights: LinearAttention, state: Tensor, staged: LinearStaged, block: Block
    ) -> Tensor:
        """Run ``decayed_linear_attention`` of rows mixed [B, T, C]; without ``steps`` they are 1. state [B, H, P, N].

        Gives [B, T, H P].
        """

    def commit_linear_attention(self, weights: LinearAttention, state: Tensor, staged: LinearStaged, count: Tensor) -> None:
        """Commit what ``linear_attention`` staged."""

    def selective_scan(
        self, selected: Selected, rate: Tensor, skip: Tensor, state: Tensor, staged: ScanStaged, block: Block
    ) -> Tensor:
        """Run Mamba's scan: rate [C, N] is the log decay of a step of 1, skip [C]; state [B, C, N]. Gives [B, T, C]."""

    def commit_selective_scan(self, rate: Tensor, state: Tensor, staged: ScanStaged, count: Tensor) -> None:
        """Commit what ``selective_scan`` staged."""

    def fading_sum(self, log_decay: Tensor, x: Tensor, state: Tensor, staged: tuple[Tensor, Tensor], block: Block) -> Tensor:
        """Return the state [B, C] after each token: ``exp(log_decay) state + x``, all [B, T, C]; staged twice [B, S, C]."""

    def commit_fading_sum(self, state: Tensor, staged: tuple[Tensor, Tensor], count: Tensor) -> None:
        """Commit what ``fading_sum`` staged."""


class Kernels(RecurrentKernels, DraftingKernels, Protocol):
    """State operations; every method may assume contiguous buffers."""

    def write_rows(self, buffer: Tensor, rows: Tensor, block: Block) -> None:
        """Put rows [B, T, G, D] into buffer [B, R, G, D] in place, from row ``block.start`` on."""

    def write_ring(self, buffer: Tensor, rows: Tensor, slots: Tensor) -> None:
        """Put rows [B, T, G, D] into buffer [B, R, G, D] in place, at ``slots`` (int64 [T], all different)."""

    def write_window(self, buffer: Tensor, rows: Tensor, block: Block) -> None:
        """Put what is real of rows [B, T, G, D] into a ring [B, R, G, D] in place, position p at p mod R, the newest last."""

    def attend(
        self, query: Tensor, keys: Tensor, values: Tensor, block: Block, scoring: Scoring, visible: Visible | None = None
    ) -> Tensor:
        """Attend with query [B, T, H, D] over keys [B, R, G, D] and values [B, R, G, V]; returns [B, T, H, V].

        Without ``visible`` row r holds position r and each token sees the rows up to its own (``causal``).
        """

    def write_quantized(self, rows: QuantizedRows, key: Tensor, value: Tensor, block: Block) -> None:
        """Round key [B, T, G, D] and value [B, T, G, V] to 8 bits and put them into rows in place, from ``block.start`` on."""

    def attend_quantized(self, query: Tensor, rows: QuantizedRows, value_dim: int, block: Block, scoring: Scoring) -> Tensor:
        """Attend over such rows as ``attend`` does; row r holds position r."""

    def keep_state(self, state: Tensor, slots: Tensor, slot: Tensor, when: Tensor) -> None:
        """Copy state into slots [B, N, X, Y], in place at ``slot`` (int64 [1], in range), where ``when`` (bool [1]) holds."""

    def bring_back(self, slots: Tensor, state: Tensor, slot: Tensor, when: Tensor) -> None:
        """Copy what slots [B, N, X, Y] hold at ``slot`` into state where ``when`` holds."""

    def clear(self, state: Tensor, when: Tensor) -> None:
        """Fill state with zeros where ``when`` holds, whatever the memory held before, NaN included."""


class CoreKernels(CoreRecurrences, CoreDrafting):
    """Core operators only: any backend, any build."""

    def write_rows(self, buffer: Tensor, rows: Tensor, block: Block) -> None:
        self.write_ring(buffer, rows, block.positions)

    def write_ring(self, buffer: Tensor, rows: Tensor, slots: Tensor) -> None:
        # One flat index on one dimension is the form that runtimes do in place.
        torch.ops.aten.index_put_(buffer, [None, slots], rows.to(buffer.dtype))

    def write_window(self, buffer: Tensor, rows: Tensor, block: Block) -> None:
        ring = buffer.shape[1]
        if block.length > ring:
            source = block.shared(("newest", ring), lambda: newest_rows(block, ring))
            buffer.copy_(torch.cat([buffer, rows], dim=1).index_select(1, source))
            return
        slots = block.shared(("slots", ring), lambda: torch.remainder(block.positions, ring))
        real = block.shared("real rows", lambda: block.real[:, None, None])
        self.write_ring(buffer, torch.where(real, rows, buffer.index_select(1, slots)), slots)

    def attend(
        self, query: Tensor, keys: Tensor, values: Tensor, block: Block, scoring: Scoring, visible: Visible | None = None
    ) -> Tensor:
        B, T, H, D = query.shape
        R, G = keys.shape[1:3]
        keys, values = keys.to(query.dtype), values.to(query.dtype)
        visible = visible or causal(block, R)
        # Rows that nothing was written to may hold anything, NaN included: a weight of 0 alone would not hide them.
        seen = block.shared("seen", lambda: visible.mask.any(0)[:, None, None], of=visible)
        grouped = query.transpose(1, 2).reshape(B, G, H // G, T, D)
        scores = grouped @ keys.permute(0, 2, 3, 1).unsqueeze(2) * scoring.scale
        weights = _softmax(scores, scoring, visible)
        out = weights @ torch.where(seen, values, 0.0).transpose(1, 2).unsqueeze(2)
        return out.reshape(B, H, T, values.shape[-1]).transpose(1, 2)

    def write_quantized(self, rows: QuantizedRows, key: Tensor, value: Tensor, block: Block) -> None:
        rows.write(key, value, block.start)

    def attend_quantized(self, query: Tensor, rows: QuantizedRows, value_dim: int, block: Block, scoring: Scoring) -> Tensor:
        return self.attend(query, *rows.dense(query.shape[-1], value_dim), block, scoring)

    def keep_state(self, state: Tensor, slots: Tensor, slot: Tensor, when: Tensor) -> None:
        kept = slots.index_select(1, slot)
        self.write_slot(slots, torch.where(when, state.view(kept.shape), kept), slot)

    def bring_back(self, slots: Tensor, state: Tensor, slot: Tensor, when: Tensor) -> None:
        kept = slots.index_select(1, slot)
        state.copy_(torch.where(when, kept.view(state.shape), state))

    def clear(self, state: Tensor, when: Tensor) -> None:
        # A select, not a product: NaN * 0 is NaN.
        state.copy_(torch.where(when, torch.zeros_like(state), state))

    def write_slot(self, slots: Tensor, value: Tensor, slot: Tensor) -> None:
        """Put value [B, 1, X, Y] into slots [B, N, X, Y] in place at index ``slot``, int64 [1]."""
        torch.ops.aten.index_put_(slots, [None, slot], value)


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
