"""Define the operations on state that a runtime may do better than plain operators can: attention, rows, slots, draft tokens.

Layers call them through ``Kernels``, so the same layer runs in eager mode, exports to core operators (``CoreKernels``) and
exports to a runtime's own operators (``hybridge.export.kernel_sets.llm``). A kernel set also says which recurrences it has
operators for.

Axes: B batch, T tokens, R rows of a buffer, H query heads, G key/value heads, D head dim, V value dim; N draft tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from hybridge.cache.block import Block
from hybridge.cache.operations.quantized_rows import QuantizedRows
from hybridge.cache.operations.ring import Ring, newest_rows
from hybridge.cache.recurrences.recurrence import Recurrence

R = TypeVar("R", bound=Recurrence)


@dataclass(frozen=True, kw_only=True)
class Scoring:
    """Attention scores: ``softcap(scale q k) + bias``, then a softmax over the visible keys and the sink.

    softcap c is ``c tanh(x / c)``; sinks, [H] or [B, H, T], is one more score that takes a share and has no value; bias
    [B, T, H, E + 1] is by distance, for keys 0 to E - 1 back, and farther.
    """

    scale: float
    softcap: float | None = None
    sinks: Tensor | None = None
    bias: Tensor | None = None

    @property
    def is_plain(self) -> bool:
        """Return whether scores are nothing but scaled."""
        return self.softcap is None and self.sinks is None and self.bias is None


@dataclass(frozen=True, kw_only=True)
class Visible:
    """held: int64 [R], the position whose key each row holds; mask: bool [T, R], which rows each token sees.

    ring: the ring by which both follow from the block's start, if they do.
    """

    held: Tensor
    mask: Tensor
    ring: Ring | None = None

    @property
    def additive(self) -> Tensor:
        """Return float32 [T, R] to add to scores: 0 for visible keys, -inf for others."""
        return torch.where(self.mask, 0.0, float("-inf"))


def causal(block: Block, rows: int) -> Visible:
    """Return the rows that each token sees if row r holds position r: those up to its own position."""
    held = torch.arange(rows)
    return block.shared(("causal", rows), lambda: Visible(held=held, mask=held <= block.positions[:, None]))


def past_and_block(block: Block, rows: int) -> Visible | None:
    """Return the same with the whole block, if its tokens see each other everywhere; None if they do not."""
    if block.bidirectional != "everywhere":
        return None
    held = torch.arange(rows)
    return block.shared(("past and block", rows), lambda: Visible(held=held, mask=held <= block.last_seen[:, None]))


def bias_by_key(bias: Tensor, held: Tensor, block: Block) -> Tensor:
    """Return [B, H, T, R], what ``Scoring.bias`` adds for keys of the positions ``held``, int64 [R].

    Source: transformers 5.23 ``InklingRelativeLogits``, which adds nothing to keys farther back.
    """
    T, length = bias.shape[1], bias.shape[-1]
    # Layers of equal caches see one and the same tensor.
    source = block.shared(("profile", length), lambda: _source(block, held, length), of=held)
    # One flat index on one dimension, the same for every head: a gather would need one the size of all scores.
    by_key: Tensor = bias.transpose(1, 2).flatten(2).index_select(2, source).unflatten(2, (T, -1))
    return by_key


def _source(block: Block, held: Tensor, length: int) -> Tensor:
    """Return the index of each pair's bias in the flattened profiles, int64 [T * R]."""
    distance = (block.positions[:, None] - held).clamp(0, length - 1)  # negative ones are not visible
    return (torch.arange(block.length)[:, None] * length + distance).flatten()


@runtime_checkable
class Kernels(Protocol):
    """A kernel set; every method may assume contiguous buffers."""

    def recurrence(self, kind: type[R]) -> R:
        """Return the operations of a recurrence: the set's own subclass of ``kind``, or ``kind`` itself."""

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

    def save_slot(self, state: Tensor, slots: Tensor, slot: Tensor, when: Tensor) -> None:
        """Copy state into slots [B, N, X, Y], in place at ``slot`` (int64 [1], in range), where ``when`` (bool [1]) holds."""

    def load_slot(self, slots: Tensor, state: Tensor, slot: Tensor, when: Tensor) -> None:
        """Copy what slots [B, N, X, Y] hold at ``slot`` into state where ``when`` holds."""

    def clear(self, state: Tensor, when: Tensor) -> None:
        """Fill state with zeros where ``when`` holds, whatever the memory held before, NaN included."""

    def draw(self, scores: Tensor, noise: Tensor, temperature: Tensor, ids: Tensor | None = None) -> Tensor:
        """Return the index int64 [1, N] of the best of each row, or of one drawn from softmax(scores / temperature).

        The drawn one is argmax(scores / temperature + g), where g is Gumbel noise that depends on a row's noise and a token's
        id alone. The core draws its tokens by the same, so that a draft token mostly is the target's own.

        Args:
            scores: float32 [1, N, C].
            noise: int64 [1, N], 32 random bits for each row.
            temperature: float32 [1]; at 0 it is the best.
            ids: int64 [1, 1 or N, C], the tokens that the scores are of; None for 0 to C - 1.
        """

    def top_probability(self, scores: Tensor) -> Tensor:
        """Return float32 [1, N]: the largest of softmax(scores)."""

    def best_candidates(self, scores: Tensor, count: int) -> Tensor:
        """Return the indices int64 [1, N, count] of the largest of each row, the largest first."""


class CoreKernels:
    """Core operators only: any backend, any build.

    own: operations of recurrences by better operators, for subclasses. Scores that are NaN give some index within the row.
    """

    own: Sequence[Recurrence] = ()

    def recurrence(self, kind: type[R]) -> R:
        return next((each for each in self.own if isinstance(each, kind)), None) or kind()

    def write_rows(self, buffer: Tensor, rows: Tensor, block: Block) -> None:
        self.write_ring(buffer, rows, block.positions)

    def write_ring(self, buffer: Tensor, rows: Tensor, slots: Tensor) -> None:
        # One flat index on one dimension is the form that runtimes do in place.
        torch.ops.aten.index_put_(buffer, [None, slots], rows.to(buffer.dtype))

    def write_window(self, buffer: Tensor, rows: Tensor, block: Block) -> None:
        ring = buffer.shape[1]
        if block.is_longer_than(ring):
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
        weights = _softmax(scores, scoring, visible, block)
        out = weights @ torch.where(seen, values, 0.0).transpose(1, 2).unsqueeze(2)
        return out.reshape(B, H, T, values.shape[-1]).transpose(1, 2)

    def write_quantized(self, rows: QuantizedRows, key: Tensor, value: Tensor, block: Block) -> None:
        rows.write(key, value, block.start)

    def attend_quantized(self, query: Tensor, rows: QuantizedRows, value_dim: int, block: Block, scoring: Scoring) -> Tensor:
        return self.attend(query, *rows.dense(query.shape[-1], value_dim), block, scoring)

    def save_slot(self, state: Tensor, slots: Tensor, slot: Tensor, when: Tensor) -> None:
        kept = slots.index_select(1, slot)
        self.write_slot(slots, torch.where(when, state.view(kept.shape), kept), slot)

    def load_slot(self, slots: Tensor, state: Tensor, slot: Tensor, when: Tensor) -> None:
        kept = slots.index_select(1, slot)
        state.copy_(torch.where(when, kept.view(state.shape), state))

    def clear(self, state: Tensor, when: Tensor) -> None:
        # A select, not a product: NaN * 0 is NaN.
        state.copy_(torch.where(when, torch.zeros_like(state), state))

    def write_slot(self, slots: Tensor, value: Tensor, slot: Tensor) -> None:
        """Put value [B, 1, X, Y] into slots [B, N, X, Y] in place at index ``slot``, int64 [1]."""
        torch.ops.aten.index_put_(slots, [None, slot], value)

    def draw(self, scores: Tensor, noise: Tensor, temperature: Tensor, ids: Tensor | None = None) -> Tensor:
        ids = torch.arange(scores.shape[-1]) if ids is None else ids
        # As noise_of_token in runtime/native/engine/noise.h. No product of these overflows.
        x = _low_bits(noise.unsqueeze(-1) + ids * 0x9E3779B1)
        x = _low_bits(_mixed(x, 16) * 0x21F0AAAD)
        x = _mixed(_low_bits(_mixed(x, 15) * 0x735A2D97), 15)
        gumbel = -(-torch.log1p(-(x.float() + 0.5) * 2.0**-32)).log()
        drawn = (scores / torch.where(temperature > 0, temperature, 1.0) + gumbel).argmax(-1)
        return torch.where(temperature > 0, drawn, scores.argmax(-1))

    def top_probability(self, scores: Tensor) -> Tensor:
        return scores.softmax(-1).amax(-1)

    def best_candidates(self, scores: Tensor, count: int) -> Tensor:
        return scores.topk(count, dim=-1).indices


def _low_bits(x: Tensor) -> Tensor:
    return x.bitwise_and(0xFFFFFFFF)


def _mixed(x: Tensor, shift: int) -> Tensor:
    """Return x ^ (x >> shift), for x of at least 0."""
    return x.bitwise_xor(x.bitwise_right_shift(shift))


def _softmax(scores: Tensor, scoring: Scoring, visible: Visible, block: Block) -> Tensor:
    """Return attention weights [B, G, H / G, T, R] of scaled scores of the same shape."""
    groups = scores.shape[1:3]
    if scoring.softcap is not None:
        scores = (scores / scoring.softcap).tanh() * scoring.softcap
    if scoring.bias is not None:
        scores = scores + bias_by_key(scoring.bias, visible.held, block).unflatten(1, groups)
    scores = torch.where(visible.mask, scores, float("-inf"))
    if scoring.sinks is None:
        return scores.softmax(-1)
    sinks = scoring.sinks[:, None] if scoring.sinks.dim() == 1 else scoring.sinks
    sinks = sinks.unflatten(-2, groups).unsqueeze(-1).expand(*scores.shape[:-1], 1)
    return torch.cat([scores, sinks], dim=-1).softmax(-1)[..., :-1]
