"""Move and choose numbers: copies to and from snapshot slots, permuted tensors, a choice by condition, draft tokens by score.

``slot`` is int64 [1] and ``when`` bool [1]. Operators that write in place return nothing of use.
Axes of scores: N rows, C scores in each.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hybridge.cache.operations.drafting import CoreDrafting
from hybridge.export.operators.define import define


def keep_state(state: Tensor, slots: Tensor, slot: Tensor, when: Tensor) -> Tensor:
    """Copy state [...] into slots [1, N, ...] at ``slot`` where ``when`` holds."""
    if bool(when):
        slots[0, int(slot)] = state.view(slots.shape[2:])
    return state.new_empty(1)


def bring_back(slots: Tensor, state: Tensor, slot: Tensor, when: Tensor) -> Tensor:
    """Copy what slots [1, N, ...] hold at ``slot`` into state [...] where ``when`` holds."""
    if bool(when):
        state.copy_(slots[0, int(slot)].view(state.shape))
    return state.new_empty(1)


def clear(state: Tensor, when: Tensor) -> Tensor:
    """Fill state with zeros where ``when`` holds."""
    if bool(when):
        state.zero_()
    return torch.empty(1)


define(
    "keep_state", "Tensor state, Tensor(a!) slots, Tensor slot, Tensor when", keep_state, lambda state, *_: state.new_empty(1)
)
define(
    "bring_back", "Tensor slots, Tensor(a!) state, Tensor slot, Tensor when", bring_back, lambda slots, *_: slots.new_empty(1)
)
define("clear", "Tensor(a!) state, Tensor when", clear, lambda state, when: torch.empty(1))


def permute(x: Tensor, dims: Sequence[int]) -> Tensor:
    """Return x of any dtype as ``x.permute(dims)``, contiguous."""
    return x.permute(tuple(dims)).contiguous()


define("permute", "Tensor x, int[] dims", permute, lambda x, dims: x.new_empty([x.shape[dim] for dim in dims]))


def where(condition: Tensor, x: Tensor, other: Tensor) -> Tensor:
    """Return x where condition (bool) holds, else other; x and other of the same dtype, all three broadcast."""
    return torch.where(condition, x, other)


def _broadcast(condition: Tensor, x: Tensor, other: Tensor) -> Tensor:
    return x.new_empty(torch.broadcast_shapes(condition.shape, x.shape, other.shape))


define("where", "Tensor condition, Tensor x, Tensor other", where, _broadcast)


def draw(scores: Tensor, noise: Tensor, temperature: Tensor) -> Tensor:
    """Return the index int64 [1, N] of the best of scores [1, N, C], or of a draw from softmax(scores / temperature).

    noise float32 [1, N], in [0, 1), decides the draw where temperature, float32 [1], is above 0.
    """
    return CoreDrafting().draw(scores, noise, temperature)


def top_chance(scores: Tensor) -> Tensor:
    """Return float32 [1, N]: the largest of softmax(scores), scores [1, N, C]."""
    return CoreDrafting().top_chance(scores)


def best_candidates(scores: Tensor, count: int) -> Tensor:
    """Return the indices int64 [1, N, count] of the largest of scores [1, N, C], the largest first."""
    return CoreDrafting().best_candidates(scores, count)


def _indices(scores: Tensor, *shape: int) -> Tensor:
    return scores.new_empty(*shape, dtype=torch.long)


define(
    "draw",
    "Tensor scores, Tensor noise, Tensor temperature",
    draw,
    lambda scores, *_: _indices(scores, *scores.shape[:2]),
)
define("top_chance", "Tensor scores", top_chance, lambda scores: scores.new_empty(*scores.shape[:2]))
define(
    "best_candidates",
    "Tensor scores, int count",
    best_candidates,
    lambda scores, count: _indices(scores, *scores.shape[:2], count),
)
