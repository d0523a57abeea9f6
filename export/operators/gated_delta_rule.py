"""Define hybridge's operators of the gated delta rule: schemas, references in PyTorch, and the form for ``HybridgeKernels``.

There are three: a block, of which the first ``count`` tokens change the state in place; a verify, which leaves the state
alone and stages what a commit needs; and a commit, which replays the first ``count`` staged tokens without their outputs.
The commit is an update of rank ``count``.

Axes: B batch, T tokens, S staged tokens, Hk key heads, H value heads, K key dim, V value dim; C = 2 Hk K + H V channels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hybridge.cache.block import Block
from hybridge.cache.recurrences.gated_delta_rule import (
    DeltaGates,
    DeltaStaged,
    GatedDeltaRule,
    gated_delta_rule_naive,
    split_heads,
)
from hybridge.export.operators.define import define, ops


class HybridgeGatedDeltaRule(GatedDeltaRule):
    """Run and commit by hybridge's own operators. Staged is the error of a value, not the value: a commit is then one sum."""

    def run(self, mixed: Tensor, gates: DeltaGates, state: Tensor, staged: DeltaStaged, block: Block) -> Tensor:
        rows = mixed, gates.decay, gates.beta, gates.rate, gates.bias, state
        options = staged.key.shape[2], gates.floor, gates.strength
        if block.tentative:
            return ops.gated_delta_rule_verify(*rows, *staged, *options)
        return ops.gated_delta_rule(*rows, block.count, *options)

    def commit(self, state: Tensor, staged: DeltaStaged, count: Tensor) -> None:
        ops.gated_delta_rule_commit(state, *staged, count)


DELTA_ROWS = "Tensor mixed, Tensor decay, Tensor beta, Tensor rate, Tensor bias"
"""mixed [B, T, C] is query, key and value as a convolution leaves them; the gates are ``DeltaGates``'."""

DELTA_OPTIONS = "int key_heads, float? floor, float strength"


def gated_delta_rule(
    mixed: Tensor, decay: Tensor, beta: Tensor, rate: Tensor, bias: Tensor,
    state: Tensor, count: Tensor, key_heads: int, floor: float | None, strength: float,
) -> Tensor:  # fmt: skip
    """Return [B, T, H, V], zeros from token ``count`` (int64 [1]) on; state [B, H, K, V] is what the first ``count`` leave."""
    n, (B, H, _, V) = int(count), state.shape
    out = mixed.new_zeros(B, mixed.shape[1], H, V)
    if n:
        gates = DeltaGates(decay=decay[:, :n], beta=beta[:, :n], rate=rate, bias=bias, floor=floor, strength=strength)
        inputs = *_for_value_heads(mixed[:, :n], key_heads, state), gates.log_decay, gates.strengths
        query, key, value, log_decay, strengths = (each.transpose(1, 2) for each in inputs)
        answers, after = gated_delta_rule_naive(query, key, value, log_decay, strengths, state)
        out[:, :n] = answers.transpose(1, 2)
        state.copy_(after)
    return out


def gated_delta_rule_verify(
    mixed: Tensor, decay: Tensor, beta: Tensor, rate: Tensor, bias: Tensor, state: Tensor,
    staged_key: Tensor, staged_error: Tensor, staged_log_decay: Tensor, staged_beta: Tensor,
    key_heads: int, floor: float | None, strength: float,
) -> Tensor:  # fmt: skip
    """Return outputs [B, T, H, V], and the first T tokens of the staged buffers.

    Staged are key [B, S, Hk, K] after its norm, error [B, S, H, V] (the value less what the state has for the key), log decay
    [B, S, H] or [B, S, H, K], and beta [B, S, H].
    """
    T = mixed.shape[1]
    gates = DeltaGates(decay=decay, beta=beta, rate=rate, bias=bias, floor=floor, strength=strength)
    query, key, value = _for_value_heads(mixed, key_heads, state)
    log_decay, strengths = gates.log_decay, gates.strengths
    group = state.shape[1] // key_heads
    for staged, each in ((staged_key, key[:, :, ::group]), (staged_log_decay, log_decay), (staged_beta, strengths)):
        staged[:, :T] = each
    outputs = []
    for t in range(T):
        faded = log_decay[:, t].exp().view(*state.shape[:2], -1, 1)
        error = value[:, t] - torch.einsum("bhk,bhkv->bhv", key[:, t], state * faded)
        staged_error[:, t] = error
        state = state * faded + key[:, t].unsqueeze(-1) * (strengths[:, t].unsqueeze(-1) * error).unsqueeze(-2)
        outputs.append(torch.einsum("bhk,bhkv->bhv", query[:, t], state))
    return torch.stack(outputs, dim=1)


def gated_delta_rule_commit(
    state: Tensor, key: Tensor, error: Tensor, log_decay: Tensor, beta: Tensor, count: Tensor
) -> Tensor:
    """Replace state [B, H, K, V] by what the first ``count`` staged tokens leave; returns ``count``."""
    group = state.shape[1] // key.shape[2]
    for t in range(int(count)):
        each = key[:, t].repeat_interleave(group, 1).unsqueeze(-1) * (beta[:, t].unsqueeze(-1) * error[:, t]).unsqueeze(-2)
        state.mul_(log_decay[:, t].exp().view(*state.shape[:2], -1, 1)).add_(each)
    return count.clone()


def _for_value_heads(mixed: Tensor, key_heads: int, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return query, key and value [B, T, H, ...]: each key head serves H / Hk value heads that follow each other."""
    query, key, value = split_heads(mixed, key_heads, state)
    group = state.shape[1] // key_heads
    return query.repeat_interleave(group, 2), key.repeat_interleave(group, 2), value


define(
    "gated_delta_rule",
    f"{DELTA_ROWS}, Tensor(a!) state, Tensor count, {DELTA_OPTIONS}",
    gated_delta_rule,
    lambda mixed, decay, beta, rate, bias, state, *_: mixed.new_empty(*mixed.shape[:2], state.shape[1], state.shape[3]),
)
define(
    "gated_delta_rule_verify",
    f"{DELTA_ROWS}, Tensor state, Tensor(a!) staged_key, Tensor(b!) staged_error, Tensor(c!) staged_log_decay, "
    f"Tensor(d!) staged_beta, {DELTA_OPTIONS}",
    gated_delta_rule_verify,
    lambda mixed, decay, beta, rate, bias, state, *_: mixed.new_empty(*mixed.shape[:2], state.shape[1], state.shape[3]),
)
define(
    "gated_delta_rule_commit",
    "Tensor(a!) state, Tensor key, Tensor error, Tensor log_decay, Tensor beta, Tensor count",
    gated_delta_rule_commit,
    lambda state, key, error, log_decay, beta, count: torch.empty_like(count),
)
