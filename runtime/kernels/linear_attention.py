"""Decayed linear attention (``cache.decayed_linear_attention``) in place, over rows of a convolution and step sizes.

A block of which the first ``count`` tokens change the state; a verify, which leaves it alone and keeps what a commit needs; and
that commit, an update of rank ``count``.

Axes: B batch, T tokens, S staged tokens, H heads, P value dim, G groups, N key dim; C as ``LinearAttention`` lays out a row.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hybridge.cache.recurrences.decayed_linear_attention import decayed_linear_attention_naive
from hybridge.cache.recurrences.state_space import LinearAttention, StepSize
from hybridge.runtime.kernels.define import define

ROWS = "Tensor mixed, Tensor? steps, Tensor? bias, Tensor rate, Tensor? skip"
"""mixed [B, T, C]; steps [B, T, X], which are read from ``start`` on; bias, rate and skip [H]."""

OPTIONS = "int start, float low, float? high, int groups, bool by_head"


def linear_attention(
    mixed: Tensor, steps: Tensor | None, bias: Tensor | None, rate: Tensor, skip: Tensor | None, state: Tensor,
    count: Tensor, start: int, low: float, high: float | None, groups: int, by_head: bool,
) -> Tensor:  # fmt: skip
    """Return [B, T, H P], zeros from token ``count`` (int64 [1]) on; state [B, H, P, N] is what the first ``count`` leave."""
    n, (B, H, P, _) = int(count), state.shape
    out = mixed.new_zeros(B, mixed.shape[1], H * P)
    if n:
        weights = LinearAttention(rate=rate, skip=skip, groups=groups, by_head=by_head)
        sizes = _sizes(mixed, steps, bias, state, start, low, high)[:, :n]
        out[:, :n], after = _run(mixed[:, :n], sizes, weights, state)
        state.copy_(after)
    return out


def linear_attention_verify(
    mixed: Tensor, steps: Tensor | None, bias: Tensor | None, rate: Tensor, skip: Tensor | None, state: Tensor,
    staged_mixed: Tensor, staged_steps: Tensor, start: int, low: float, high: float | None, groups: int, by_head: bool,
) -> Tensor:  # fmt: skip
    """Return outputs [B, T, H P]; the first T tokens of staged_mixed [B, S, C] and staged_steps [B, S, H] are written."""
    T = mixed.shape[1]
    sizes = _sizes(mixed, steps, bias, state, start, low, high)
    staged_mixed[:, :T], staged_steps[:, :T] = mixed, sizes
    return _run(mixed, sizes, LinearAttention(rate=rate, skip=skip, groups=groups, by_head=by_head), state)[0]


def linear_attention_commit(
    state: Tensor, mixed: Tensor, steps: Tensor, rate: Tensor, count: Tensor, groups: int, by_head: bool
) -> Tensor:
    """Replace state [B, H, P, N] by what the first ``count`` staged tokens leave; returns ``count``."""
    if n := int(count):
        weights = LinearAttention(rate=rate, groups=groups, by_head=by_head)
        state.copy_(_run(mixed[:, :n], steps[:, :n], weights, state)[1])
    return count.clone()


def _sizes(
    mixed: Tensor, steps: Tensor | None, bias: Tensor | None, state: Tensor, start: int, low: float, high: float | None
) -> Tensor:
    H = state.shape[1]
    if steps is None:
        return torch.ones(*mixed.shape[:2], H)
    return StepSize(raw=steps, count=H, start=start, bias=bias, low=low, high=math.inf if high is None else high).sizes


def _run(mixed: Tensor, sizes: Tensor, weights: LinearAttention, state: Tensor) -> tuple[Tensor, Tensor]:
    query, key, value = weights.split(mixed.transpose(1, 2), state)
    steps = sizes.transpose(1, 2)
    log_decay = steps * weights.rate.unsqueeze(-1)
    out, after = decayed_linear_attention_naive(query, key, value * steps.unsqueeze(2), log_decay, state)
    if weights.skip is not None:
        out = out + value * weights.skip[:, None, None]
    return out.flatten(1, 2).transpose(1, 2).contiguous(), after


define(
    "linear_attention",
    f"{ROWS}, Tensor(a!) state, Tensor count, {OPTIONS}",
    linear_attention,
    lambda mixed, steps, bias, rate, skip, state, *_: mixed.new_empty(*mixed.shape[:2], state.shape[1] * state.shape[2]),
)
define(
    "linear_attention_verify",
    f"{ROWS}, Tensor state, Tensor(a!) staged_mixed, Tensor(b!) staged_steps, {OPTIONS}",
    linear_attention_verify,
    lambda mixed, steps, bias, rate, skip, state, *_: mixed.new_empty(*mixed.shape[:2], state.shape[1] * state.shape[2]),
)
define(
    "linear_attention_commit",
    "Tensor(a!) state, Tensor mixed, Tensor steps, Tensor rate, Tensor count, int groups, bool by_head",
    linear_attention_commit,
    lambda state, mixed, steps, rate, count, groups, by_head: torch.empty_like(count),
)
