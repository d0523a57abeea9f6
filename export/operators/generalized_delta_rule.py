"""Define hybridge's operators of RWKV-7's rule: schemas, references in PyTorch, and the form for ``HybridgeKernels``.

There are three: a block, of which the first ``count`` tokens change the state in place; a verify, which leaves the state
alone and stages what a commit needs; and a commit, which replays the first ``count`` staged tokens without their outputs.

Axes: B batch, T tokens, S staged tokens, H heads, K key dim, V value dim.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hybridge.cache.block import Block
from hybridge.cache.recurrences.generalized_delta_rule import (
    GeneralizedDeltaInputs,
    GeneralizedDeltaRule,
    generalized_delta_rule_naive,
)
from hybridge.export.operators.define import define, ops


class HybridgeGeneralizedDeltaRule(GeneralizedDeltaRule):
    """Run and commit by hybridge's own operators."""

    def run(
        self, query: Tensor, inputs: GeneralizedDeltaInputs, state: Tensor, staged: GeneralizedDeltaInputs, block: Block
    ) -> Tensor:
        if block.tentative:
            return ops.generalized_delta_rule_verify(query, *inputs, *staged, state)
        return ops.generalized_delta_rule(query, *inputs, state, block.count)

    def commit(self, state: Tensor, staged: GeneralizedDeltaInputs, count: Tensor) -> None:
        ops.generalized_delta_rule_commit(state, *staged, count)


def generalized_delta_rule(
    query: Tensor, log_decay: Tensor, rate: Tensor, removed: Tensor, key: Tensor, value: Tensor, state: Tensor, count: Tensor
) -> Tensor:
    """Return [B, T, H, V], zeros from token ``count`` (int64 [1]) on; state [B, H, K, V] is what the first ``count`` leave.

    value is [B, T, H, V], the others [B, T, H, K].
    """
    n, out = int(count), torch.zeros_like(value)
    if n:
        inputs = GeneralizedDeltaInputs(*(each[:, :n] for each in (log_decay, rate, removed, key, value)))
        out[:, :n], after = _answers(query[:, :n], inputs, state)
        state.copy_(after)
    return out


def generalized_delta_rule_verify(
    query: Tensor, log_decay: Tensor, rate: Tensor, removed: Tensor, key: Tensor, value: Tensor, staged_log_decay: Tensor,
    staged_rate: Tensor, staged_removed: Tensor, staged_key: Tensor, staged_value: Tensor, state: Tensor,
) -> Tensor:  # fmt: skip
    """Return [B, T, H, V]; state stays, and the first T tokens of the staged buffers [B, S, H, K or V] are written."""
    inputs = GeneralizedDeltaInputs(log_decay, rate, removed, key, value)
    buffers = staged_log_decay, staged_rate, staged_removed, staged_key, staged_value
    for staged, each in zip(buffers, inputs, strict=True):
        staged[:, : each.shape[1]] = each
    return _answers(query, inputs, state)[0]


def generalized_delta_rule_commit(
    state: Tensor, log_decay: Tensor, rate: Tensor, removed: Tensor, key: Tensor, value: Tensor, count: Tensor
) -> Tensor:
    """Replace state [B, H, K, V] by what the first ``count`` staged tokens leave; returns ``count``."""
    if n := int(count):
        inputs = GeneralizedDeltaInputs(*(each[:, :n] for each in (log_decay, rate, removed, key, value)))
        state.copy_(_answers(inputs.key, inputs, state)[1])
    return count.clone()


def _answers(query: Tensor, inputs: GeneralizedDeltaInputs, state: Tensor) -> tuple[Tensor, Tensor]:
    out, after = generalized_delta_rule_naive(query.transpose(1, 2), inputs.by_head(), state)
    return out.transpose(1, 2).contiguous(), after


ROWS = "Tensor log_decay, Tensor rate, Tensor removed, Tensor key, Tensor value"

define(
    "generalized_delta_rule",
    f"Tensor query, {ROWS}, Tensor(a!) state, Tensor count",
    generalized_delta_rule,
    lambda query, log_decay, rate, removed, key, value, *_: value.new_empty(value.shape),
)
define(
    "generalized_delta_rule_verify",
    f"Tensor query, {ROWS}, Tensor(a!) staged_log_decay, Tensor(b!) staged_rate, Tensor(c!) staged_removed, "
    "Tensor(d!) staged_key, Tensor(e!) staged_value, Tensor state",
    generalized_delta_rule_verify,
    lambda query, log_decay, rate, removed, key, value, *_: value.new_empty(value.shape),
)
define(
    "generalized_delta_rule_commit",
    f"Tensor(a!) state, {ROWS}, Tensor count",
    generalized_delta_rule_commit,
    lambda state, log_decay, rate, removed, key, value, count: torch.empty_like(count),
)
