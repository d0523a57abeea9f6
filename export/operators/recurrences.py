"""The recurrences of ``hybridge.cache.recurrences`` and the short convolution, with their state changed in place.

Each has three operators, over what a convolution and its projections put out: a block of which the first ``count`` tokens
change the state; a verify, which leaves the state alone and stages what a commit needs; and the commit, which replays the first
``count`` staged tokens without their outputs.

Axes: B batch, T tokens, S staged tokens, C channels, H heads; more of them at each recurrence.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from hybridge.cache.recurrences.decayed_linear_attention import decayed_linear_attention_naive
from hybridge.cache.recurrences.delta_gates import DeltaGates, split_heads
from hybridge.cache.recurrences.diagonal_scan import diagonal_scan_naive
from hybridge.cache.recurrences.gated_delta_rule import gated_delta_rule_naive
from hybridge.cache.recurrences.kimi_delta_rule import kimi_delta_rule_naive
from hybridge.cache.recurrences.state_space import LinearAttention, StepSize
from hybridge.export.operators.define import define
from hybridge.export.operators.elementwise import ACTIVATIONS

# The gated delta rule. Hk key heads, H value heads, K key dim, V value dim; C = 2 Hk K + H V. Its commit is an
# update of rank
# ``count``.
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
        rule = kimi_delta_rule_naive if gates.log_decay.dim() == 4 else gated_delta_rule_naive
        query, key, value, log_decay, strengths = (each.transpose(1, 2) for each in inputs)
        answers, after = rule(query, key, value, log_decay, strengths, state)
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
    """Query, key and value [B, T, H, ...]: each key head serves H / Hk value heads that follow each other."""
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

# Decayed linear attention, over rows of a convolution and step sizes. P value dim, G groups, N key dim; C as
# ``LinearAttention`` lays out a row. Its commit is an update of rank ``count``.
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
        weights = LinearAttention(rate=rate, skip=skip, groups=groups, by_head=by_head)
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
    return _linear_block(mixed, sizes, LinearAttention(rate=rate, skip=skip, groups=groups, by_head=by_head), state)[0]


def linear_attention_commit(
    state: Tensor, mixed: Tensor, steps: Tensor, rate: Tensor, count: Tensor, groups: int, by_head: bool
) -> Tensor:
    """Replace state [B, H, P, N] by what the first ``count`` staged tokens leave; returns ``count``."""
    if n := int(count):
        weights = LinearAttention(rate=rate, groups=groups, by_head=by_head)
        state.copy_(_linear_block(mixed[:, :n], steps[:, :n], weights, state)[1])
    return count.clone()


def _linear_sizes(
    mixed: Tensor, steps: Tensor | None, bias: Tensor | None, state: Tensor, start: int, low: float, high: float | None
) -> Tensor:
    H = state.shape[1]
    if steps is None:
        return torch.ones(*mixed.shape[:2], H)
    return StepSize(raw=steps, count=H, start=start, bias=bias, low=low, high=math.inf if high is None else high).sizes


def _linear_block(mixed: Tensor, sizes: Tensor, weights: LinearAttention, state: Tensor) -> tuple[Tensor, Tensor]:
    query, key, value = weights.split(mixed.transpose(1, 2), state)
    steps = sizes.transpose(1, 2)
    log_decay = steps * weights.rate.unsqueeze(-1)
    out, after = decayed_linear_attention_naive(query, key, value * steps.unsqueeze(2), log_decay, state)
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

# Mamba's selective scan. C channels in H heads, N state dim.
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
    """The state after every token, [B, H, C / H, N, T]."""
    H, N = key.shape[2:]
    steps, scaled = (each.transpose(1, 2).unflatten(1, (H, -1)).unsqueeze(3) for each in (sizes, sizes * x))
    decay = (steps * rate.view(H, -1, N, 1)).exp()
    return diagonal_scan_naive(decay, scaled * key.permute(0, 2, 3, 1).unsqueeze(2), state.view(decay.shape[:-1]))


def _scan_answers(states: Tensor, query: Tensor) -> Tensor:
    summed = (states * query.permute(0, 2, 3, 1).unsqueeze(2)).sum(3)
    return summed.flatten(1, 2).transpose(1, 2)


define(
    "selective_scan",
    f"{SCAN_ROWS}, Tensor(a!) state, Tensor count",
    selective_scan,
    lambda x, *_: x.new_empty(x.shape),
)
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

# The recurrence of each channel by itself, as RG-LRU has it.


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

# The short causal convolution with its window. W = kernel - 1, X channels of a wider row; C are read, from
# ``start`` on.
CONV_ROWS = "Tensor x, Tensor taps, Tensor? bias"
"""x [B, T, X]; taps [W + 1, C], the newest last, and bias [C]. The activation is a name of ``ACTIVATIONS``, or empty."""


def short_conv(
    x: Tensor, taps: Tensor, bias: Tensor | None, window: Tensor, count: Tensor, start: int, activation: str
) -> Tensor:
    """Return [B, T, C], zeros from token ``count`` (int64 [1]) on; window [B, W, C] takes in the first ``count`` inputs."""
    n, inputs = int(count), _conv_inputs(x, taps, start)
    out = torch.zeros_like(inputs)
    if n:
        out[:, :n] = _convolve(torch.cat([window, inputs[:, :n]], dim=1), taps, bias, activation)
        shift_window(window, inputs, count)
    return out


def short_conv_verify(
    x: Tensor, taps: Tensor, bias: Tensor | None, window: Tensor, staged: Tensor, start: int, activation: str
) -> Tensor:
    """Return outputs [B, T, C]; the window stays and the inputs go into the first T rows of staged [B, S, C]."""
    inputs = _conv_inputs(x, taps, start)
    staged[:, : x.shape[1]] = inputs
    return _convolve(torch.cat([window, inputs], dim=1), taps, bias, activation)


def shift_window(window: Tensor, x: Tensor, count: Tensor) -> Tensor:
    """Shift the first ``count`` of x [B, T, C] into window [B, W, C]; returns ``count``."""
    n = int(count)
    window.copy_(torch.cat([window, x], dim=1)[:, n : n + window.shape[1]])
    return count.clone()


def _conv_inputs(x: Tensor, taps: Tensor, start: int) -> Tensor:
    return x[..., start : start + taps.shape[1]]


def _convolve(rows: Tensor, taps: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    mixed = F.conv1d(rows.transpose(1, 2), taps.T.unsqueeze(1), bias, groups=taps.shape[1]).transpose(1, 2)
    return ACTIVATIONS[activation](mixed) if activation else mixed.contiguous()


define(
    "short_conv",
    f"{CONV_ROWS}, Tensor(a!) window, Tensor count, int start, str activation",
    short_conv,
    lambda x, taps, *_: x.new_empty(*x.shape[:2], taps.shape[1]),
)
define(
    "short_conv_verify",
    f"{CONV_ROWS}, Tensor window, Tensor(a!) staged, int start, str activation",
    short_conv_verify,
    lambda x, taps, *_: x.new_empty(*x.shape[:2], taps.shape[1]),
)
define(
    "shift_window",
    "Tensor(a!) window, Tensor x, Tensor count",
    shift_window,
    lambda window, x, count: torch.empty_like(count),
)
