"""Define hybridge's operators of Mamba's selective scan: schemas, references in PyTorch, and the form for ``HybridgeKernels``.

There are three: a block, of which the first ``count`` tokens change the state in place; a verify, which leaves the state
alone and stages what a commit needs; and a commit, which replays the first ``count`` staged tokens without their outputs.

Axes: B batch, T tokens, S staged tokens, C channels in H heads, N state dim.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hybridge.cache.block import Block
from hybridge.cache.recurrences.linear_attention import StepSize
from hybridge.cache.recurrences.selective_scan import ScanStaged, Selected, SelectiveScan, diagonal_scan_naive
from hybridge.export.operators.define import define, ops


class HybridgeSelectiveScan(SelectiveScan):
    """Run and commit by hybridge's own operators."""

    def run(self, selected: Selected, rate: Tensor, skip: Tensor, state: Tensor, staged: ScanStaged, block: Block) -> Tensor:
        steps, inputs = selected.steps, (x.contiguous() for x in (selected.key, selected.query))
        rows = selected.x, steps.raw.contiguous(), steps.bias, *inputs, rate, skip
        if block.tentative:
            return ops.selective_scan_verify(*rows, *staged, state)
        return ops.selective_scan(*rows, state, block.count)

    def commit(self, rate: Tensor, state: Tensor, staged: ScanStaged, count: Tensor) -> None:
        ops.selective_scan_commit(state, *staged, rate, count)


SCAN_ROWS = "Tensor x, Tensor steps, Tensor? bias, Tensor key, Tensor query, Tensor rate, Tensor skip"
"""x and steps [B, T, C], steps before their softplus; bias and skip [C]; key and query [B, T, H, N]; rate [C, N]."""


def selective_scan(
    x: Tensor, steps: Tensor, bias: Tensor | None, key: Tensor, query: Tensor, rate: Tensor, skip: Tensor,
    state: Tensor, count: Tensor,
) -> Tensor:  # fmt: skip
    """Return [B, T, C], zeros from token ``count`` (int64 [1]) on; state [B, C, N] is what the first ``count`` leave."""
    n, out = int(count), torch.zeros_like(x)
    if n:
        states = _scan_states(x[:, :n], _scan_sizes(steps, bias)[:, :n], key[:, :n], rate, state)
        out[:, :n] = _scan_answers(states, query[:, :n]) + x[:, :n] * skip
        state.copy_(states[..., -1].reshape(state.shape))
    return out


def selective_scan_verify(
    x: Tensor, steps: Tensor, bias: Tensor | None, key: Tensor, query: Tensor, rate: Tensor, skip: Tensor,
    staged_x: Tensor, staged_steps: Tensor, staged_key: Tensor, state: Tensor,
) -> Tensor:  # fmt: skip
    """Return [B, T, C]; the first T tokens of staged_x, staged_steps [B, S, C] and staged_key [B, S, H, N] are written."""
    T, sizes = x.shape[1], _scan_sizes(steps, bias)
    staged_x[:, :T], staged_steps[:, :T], staged_key[:, :T] = x, sizes, key
    return _scan_answers(_scan_states(x, sizes, key, rate, state), query) + x * skip


def selective_scan_commit(state: Tensor, x: Tensor, steps: Tensor, key: Tensor, rate: Tensor, count: Tensor) -> Tensor:
    """Replace state [B, C, N] by what the first ``count`` staged tokens leave; returns ``count``."""
    if n := int(count):
        states = _scan_states(x[:, :n], steps[:, :n], key[:, :n], rate, state)
        state.copy_(states[..., -1].reshape(state.shape))
    return count.clone()


def _scan_sizes(steps: Tensor, bias: Tensor | None) -> Tensor:
    return StepSize(raw=steps, count=steps.shape[2], bias=bias).sizes


def _scan_states(x: Tensor, sizes: Tensor, key: Tensor, rate: Tensor, state: Tensor) -> Tensor:
    """Return the state after every token, [B, H, C / H, N, T]."""
    H, N = key.shape[2:]
    steps, scaled = (each.transpose(1, 2).unflatten(1, (H, -1)).unsqueeze(3) for each in (sizes, sizes * x))
    decay = (steps * rate.view(H, -1, N, 1)).exp()
    return diagonal_scan_naive(decay, scaled * key.permute(0, 2, 3, 1).unsqueeze(2), state.view(decay.shape[:-1]))


def _scan_answers(states: Tensor, query: Tensor) -> Tensor:
    summed = (states * query.permute(0, 2, 3, 1).unsqueeze(2)).sum(3)
    return summed.flatten(1, 2).transpose(1, 2)


define("selective_scan", f"{SCAN_ROWS}, Tensor(a!) state, Tensor count", selective_scan, lambda x, *_: x.new_empty(x.shape))
define(
    "selective_scan_verify",
    f"{SCAN_ROWS}, Tensor(a!) staged_x, Tensor(b!) staged_steps, Tensor(c!) staged_key, Tensor state",
    selective_scan_verify,
    lambda x, *_: x.new_empty(x.shape),
)
define(
    "selective_scan_commit",
    "Tensor(a!) state, Tensor x, Tensor steps, Tensor key, Tensor rate, Tensor count",
    selective_scan_commit,
    lambda state, x, steps, key, rate, count: torch.empty_like(count),
)
