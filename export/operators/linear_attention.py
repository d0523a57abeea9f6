"""Define hybridge's operators of linear attention: schemas, references in PyTorch, and the form for ``HybridgeKernels``.

There are three: a block, of which the first ``count`` tokens change the state in place; a verify, which leaves the state
alone and stages what a commit needs; and a commit, which replays the first ``count`` staged tokens without their outputs.
They take rows of a convolution, as ``LinearWeights`` lays them out, and step sizes. The commit is an update of rank ``count``.

Axes: B batch, T tokens, S staged tokens, C channels, H heads, P value dim, G groups, N key dim.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hybridge.cache.block import Block
from hybridge.cache.recurrences.linear_attention import (
    LinearAttention,
    LinearStaged,
    LinearWeights,
    StepSize,
    linear_attention_naive,
)
from hybridge.export.operators.define import define, ops


class HybridgeLinearAttention(LinearAttention):
    """Run and commit by hybridge's own operators."""

    def run(
        self, mixed: Tensor, steps: StepSize | None, weights: LinearWeights, state: Tensor, staged: LinearStaged, block: Block
    ) -> Tensor:
        given = (steps.raw, steps.bias) if steps else (None, None)
        rows = mixed, *given, weights.rate, weights.skip, state
        high = None if steps is None or steps.high == math.inf else steps.high
        options = steps.start if steps else 0, steps.low if steps else 0.0, high, weights.groups, weights.by_head
        if block.tentative:
            return ops.linear_attention_verify(*rows, *staged, *options)
        return ops.linear_attention(*rows, block.count, *options)

    def commit(self, weights: LinearWeights, state: Tensor, staged: LinearStaged, count: Tensor) -> None:
        ops.linear_attention_commit(state, *staged, weights.rate, count, weights.groups, weights.by_head)


LINEAR_ROWS = "Tensor mixed, Tensor? steps, Tensor? bias, Tensor rate, Tensor? skip"
"""mixed [B, T, C]; steps [B, T, X], which are read from ``start`` on; bias, rate and skip [H]."""

LINEAR_OPTIONS = "int start, float low, float? high, int groups, bool by_head"


def linear_attention(
    mixed: Tensor, steps: Tensor | None, bias: Tensor | None, rate: Tensor, skip: Tensor | None, state: Tensor,
    count: Tensor, start: int, low: float, high: float | None, groups: int, by_head: bool,
) -> Tensor:  # fmt: skip
    """Return [B, T, H P], zeros from token ``count`` (int64 [1]) on; state [B, H, P, N] is what the first ``count`` leave."""
    n, (B, H, P, _) = int(count), state.shape
    out = mixed.new_zeros(B, mixed.shape[1], H * P)
    if n:
        weights = LinearWeights(rate=rate, skip=skip, groups=groups, by_head=by_head)
        sizes = _linear_sizes(mixed, steps, bias, state, start, low, high)[:, :n]
        out[:, :n], after = _linear_block(mixed[:, :n], sizes, weights, state)
        state.copy_(after)
    return out


def linear_attention_verify(
    mixed: Tensor, steps: Tensor | None, bias: Tensor | None, rate: Tensor, skip: Tensor | None, state: Tensor,
    staged_mixed: Tensor, staged_steps: Tensor, start: int, low: float, high: float | None, groups: int, by_head: bool,
) -> Tensor:  # fmt: skip
    """Return outputs [B, T, H P]; the first T tokens of staged_mixed [B, S, C] and staged_steps [B, S, H] are written."""
    T = mixed.shape[1]
    sizes = _linear_sizes(mixed, steps, bias, state, start, low, high)
    staged_mixed[:, :T], staged_steps[:, :T] = mixed, sizes
    return _linear_block(mixed, sizes, LinearWeights(rate=rate, skip=skip, groups=groups, by_head=by_head), state)[0]


def linear_attention_commit(
    state: Tensor, mixed: Tensor, steps: Tensor, rate: Tensor, count: Tensor, groups: int, by_head: bool
) -> Tensor:
    """Replace state [B, H, P, N] by what the first ``count`` staged tokens leave; returns ``count``."""
    if n := int(count):
        weights = LinearWeights(rate=rate, groups=groups, by_head=by_head)
        state.copy_(_linear_block(mixed[:, :n], steps[:, :n], weights, state)[1])
    return count.clone()


def _linear_sizes(
    mixed: Tensor, steps: Tensor | None, bias: Tensor | None, state: Tensor, start: int, low: float, high: float | None
) -> Tensor:
    H = state.shape[1]
    if steps is None:
        return torch.ones(*mixed.shape[:2], H)
    return StepSize(raw=steps, count=H, start=start, bias=bias, low=low, high=math.inf if high is None else high).sizes


def _linear_block(mixed: Tensor, sizes: Tensor, weights: LinearWeights, state: Tensor) -> tuple[Tensor, Tensor]:
    query, key, value = weights.split(mixed.transpose(1, 2), state)
    steps = sizes.transpose(1, 2)
    log_decay = steps * weights.rate.unsqueeze(-1)
    out, after = linear_attention_naive(query, key, value * steps.unsqueeze(2), log_decay, state)
    if weights.skip is not None:
        out = out + value * weights.skip[:, None, None]
    return out.flatten(1, 2).transpose(1, 2).contiguous(), after


define(
    "linear_attention",
    f"{LINEAR_ROWS}, Tensor(a!) state, Tensor count, {LINEAR_OPTIONS}",
    linear_attention,
    lambda mixed, steps, bias, rate, skip, state, *_: mixed.new_empty(*mixed.shape[:2], state.shape[1] * state.shape[2]),
)
define(
    "linear_attention_verify",
    f"{LINEAR_ROWS}, Tensor state, Tensor(a!) staged_mixed, Tensor(b!) staged_steps, {LINEAR_OPTIONS}",
    linear_attention_verify,
    lambda mixed, steps, bias, rate, skip, state, *_: mixed.new_empty(*mixed.shape[:2], state.shape[1] * state.shape[2]),
)
define(
    "linear_attention_commit",
    "Tensor(a!) state, Tensor mixed, Tensor steps, Tensor rate, Tensor count, int groups, bool by_head",
    linear_attention_commit,
    lambda state, mixed, steps, rate, count, groups, by_head: torch.empty_like(count),
)
