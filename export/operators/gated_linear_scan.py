"""Define hybridge's operators of the gated linear scan: schemas, references in PyTorch, and the form for ``HybridgeKernels``.

There are three: a block, of which the first ``count`` tokens change the state in place; a verify, which leaves the state
alone and stages what a commit needs; and a commit, which replays the first ``count`` staged tokens without their outputs.
They are called ``fading_sum``, as in the programs that have been exported with them.

Axes: B batch, T tokens, S staged tokens, C channels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hybridge.cache.block import Block
from hybridge.cache.recurrences.gated_linear_scan import GatedLinearScan, GatedScanStaged
from hybridge.cache.recurrences.selective_scan import diagonal_scan_naive
from hybridge.export.operators.define import define, ops


class HybridgeGatedLinearScan(GatedLinearScan):
    """Run and commit by hybridge's own operators."""

    def run(self, log_decay: Tensor, x: Tensor, state: Tensor, staged: GatedScanStaged, block: Block) -> Tensor:
        if block.tentative:
            return ops.fading_sum_verify(log_decay, x, *staged, state)
        return ops.fading_sum(log_decay, x, state, block.count)

    def commit(self, state: Tensor, staged: GatedScanStaged, count: Tensor) -> None:
        ops.fading_sum_commit(state, *staged, count)


def fading_sum(log_decay: Tensor, x: Tensor, state: Tensor, count: Tensor) -> Tensor:
    """Return the states ``exp(log_decay) state + x`` of T tokens [B, T, C], zeros from token ``count`` (int64 [1]) on.

    state [B, C] is what the first ``count`` leave.
    """
    n, out = int(count), torch.zeros_like(x)
    if n:
        out[:, :n] = _faded_states(log_decay[:, :n], x[:, :n], state)
        state.copy_(out[:, n - 1])
    return out


def fading_sum_verify(log_decay: Tensor, x: Tensor, staged_log_decay: Tensor, staged_x: Tensor, state: Tensor) -> Tensor:
    """Return the states [B, T, C]; state stays, and the first T tokens of the staged buffers [B, S, C] are written."""
    T = x.shape[1]
    staged_log_decay[:, :T], staged_x[:, :T] = log_decay, x
    return _faded_states(log_decay, x, state)


def fading_sum_commit(state: Tensor, log_decay: Tensor, x: Tensor, count: Tensor) -> Tensor:
    """Replace state [B, C] by what the first ``count`` staged tokens leave; returns ``count``."""
    if n := int(count):
        state.copy_(_faded_states(log_decay[:, :n], x[:, :n], state)[:, -1])
    return count.clone()


def _faded_states(log_decay: Tensor, x: Tensor, state: Tensor) -> Tensor:
    states = diagonal_scan_naive(log_decay.exp().transpose(1, 2), x.transpose(1, 2), state)
    return states.transpose(1, 2).contiguous()


define(
    "fading_sum",
    "Tensor log_decay, Tensor x, Tensor(a!) state, Tensor count",
    fading_sum,
    lambda log_decay, x, *_: x.new_empty(x.shape),
)
define(
    "fading_sum_verify",
    "Tensor log_decay, Tensor x, Tensor(a!) staged_log_decay, Tensor(b!) staged_x, Tensor state",
    fading_sum_verify,
    lambda log_decay, x, *_: x.new_empty(x.shape),
)
define(
    "fading_sum_commit",
    "Tensor(a!) state, Tensor log_decay, Tensor x, Tensor count",
    fading_sum_commit,
    lambda state, log_decay, x, count: torch.empty_like(count),
)
