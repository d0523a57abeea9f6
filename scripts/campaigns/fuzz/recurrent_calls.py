"""Good calls of the recurrent kernels.

Axes: B batch, T tokens, S staged tokens, H heads, Hk key heads, K key dim, V value dim, P and N dims of a state, C channels,
W a convolution's window.
"""

from __future__ import annotations

import numpy as np

from campaigns.fuzz.kernel_arguments import ACTIVATIONS, Array, Call, MaybeReal, Rng, call, floats, maybe, number, out, size


def count(rng: Rng, most: int) -> Array:
    """How many of a block's tokens are real."""
    return number(int(rng.integers(0, most + 1)))


def counted() -> Array:
    """The output of a commit."""
    return Array(np.zeros(1, np.int64))


@call("fading_sum")
def _fading_sum(rng: Rng) -> Call:
    B, T, C = size(rng, 3), size(rng), size(rng, 40)
    return [floats(rng, B, T, C), floats(rng, B, T, C), floats(rng, B, C), count(rng, T), out(B, T, C)]


@call("fading_sum_verify")
def _fading_sum_verify(rng: Rng) -> Call:
    B, T, C = size(rng, 3), size(rng), size(rng, 40)
    S = T + int(rng.integers(0, 3))
    block: Call = [floats(rng, B, T, C) for _ in range(2)]
    return [*block, floats(rng, B, S, C), floats(rng, B, S, C), floats(rng, B, C), out(B, T, C)]


@call("fading_sum_commit")
def _fading_sum_commit(rng: Rng) -> Call:
    B, S, C = size(rng, 3), size(rng), size(rng, 40)
    return [floats(rng, B, C), floats(rng, B, S, C), floats(rng, B, S, C), count(rng, S), counted()]


def _delta_sizes(rng: Rng) -> tuple[int, ...]:
    """B, T, key heads, H, K, V, and the numbers of a token's decay for each head."""
    key_heads, K = size(rng, 3), size(rng, 20) + 1
    return size(rng, 2), size(rng, 12), key_heads, key_heads * size(rng, 2), K, size(rng, 40), int(rng.choice([1, K]))


def _delta_rows(rng: Rng, sizes: tuple[int, ...]) -> Call:
    B, T, Hk, H, K, V, each = sizes
    mixed, gates = floats(rng, B, T, 2 * Hk * K + H * V), [floats(rng, B, T, H * each), floats(rng, B, T, H)]
    return [mixed, *gates, floats(rng, H), floats(rng, H * each)]


def _delta_options(rng: Rng, key_heads: int) -> Call:
    return [key_heads, MaybeReal(-5.0 if rng.random() < 0.5 else None), float(rng.choice([1.0, 2.0]))]


@call("gated_delta_rule")
def _gated_delta_rule(rng: Rng) -> Call:
    sizes = B, T, Hk, H, K, V, _ = _delta_sizes(rng)
    state: Call = [floats(rng, B, H, K, V), count(rng, T)]
    return [*_delta_rows(rng, sizes), *state, *_delta_options(rng, Hk), out(B, T, H, V)]


def _delta_staged(rng: Rng, sizes: tuple[int, ...], S: int) -> Call:
    B, _, Hk, H, K, V, each = sizes
    log_decay = floats(rng, B, S, H) if each == 1 else floats(rng, B, S, H, K)
    return [floats(rng, B, S, Hk, K), floats(rng, B, S, H, V), log_decay, floats(rng, B, S, H)]


@call("gated_delta_rule_verify")
def _gated_delta_rule_verify(rng: Rng) -> Call:
    sizes = B, T, Hk, H, K, V, _ = _delta_sizes(rng)
    staged = _delta_staged(rng, sizes, T + int(rng.integers(0, 3)))
    return [*_delta_rows(rng, sizes), floats(rng, B, H, K, V), *staged, *_delta_options(rng, Hk), out(B, T, H, V)]


@call("gated_delta_rule_commit")
def _gated_delta_rule_commit(rng: Rng) -> Call:
    sizes = B, S, _, H, K, V, _ = _delta_sizes(rng)
    return [floats(rng, B, H, K, V), *_delta_staged(rng, sizes, S), count(rng, S), counted()]


def _linear_sizes(rng: Rng) -> tuple[int, ...]:
    """B, T, H, P, N, groups, whether rows are by head, and the width of a row."""
    groups, P, N, by_head = size(rng, 3), size(rng, 20), size(rng, 20), int(rng.integers(2))
    H = groups * size(rng, 3)
    return size(rng, 2), size(rng, 12), H, P, N, groups, by_head, H * (2 * N + P) if by_head else H * P + 2 * groups * N


def _linear_rows(rng: Rng, sizes: tuple[int, ...]) -> tuple[Call, int]:
    """The rows, and where in them steps begin."""
    B, T, H, *_, row = sizes
    start, rest = int(rng.integers(0, 3)), int(rng.integers(0, 3))
    steps = maybe(rng, floats(rng, B, T, start + H + rest))
    return [floats(rng, B, T, row), steps, maybe(rng, floats(rng, H)), floats(rng, H), maybe(rng, floats(rng, H))], start


def _linear_options(rng: Rng, start: int, groups: int, by_head: int) -> Call:
    return [start, 0.0, MaybeReal(0.1 if rng.random() < 0.5 else None), groups, by_head]


@call("linear_attention")
def _linear_attention(rng: Rng) -> Call:
    sizes = B, T, H, P, N, groups, by_head, _ = _linear_sizes(rng)
    rows, start = _linear_rows(rng, sizes)
    return [*rows, floats(rng, B, H, P, N), count(rng, T), *_linear_options(rng, start, groups, by_head), out(B, T, H * P)]


@call("linear_attention_verify")
def _linear_attention_verify(rng: Rng) -> Call:
    sizes = B, T, H, P, N, groups, by_head, row = _linear_sizes(rng)
    rows, start = _linear_rows(rng, sizes)
    S = T + int(rng.integers(0, 3))
    staged: Call = [floats(rng, B, S, row), floats(rng, B, S, H)]
    return [*rows, floats(rng, B, H, P, N), *staged, *_linear_options(rng, start, groups, by_head), out(B, T, H * P)]


@call("linear_attention_commit")
def _linear_attention_commit(rng: Rng) -> Call:
    B, S, H, P, N, groups, by_head, row = _linear_sizes(rng)
    staged: Call = [floats(rng, B, S, row), floats(rng, B, S, H), floats(rng, H)]
    return [floats(rng, B, H, P, N), *staged, count(rng, S), groups, by_head, counted()]


def _scan_sizes(rng: Rng) -> tuple[int, ...]:
    """B, T, C, H, N."""
    H = size(rng, 3)
    return size(rng, 2), size(rng), H * size(rng, 40), H, size(rng, 20)


def _scan_rows(rng: Rng, sizes: tuple[int, ...]) -> Call:
    B, T, C, H, N = sizes
    rows: Call = [floats(rng, B, T, C), floats(rng, B, T, C), maybe(rng, floats(rng, C))]
    return [*rows, floats(rng, B, T, H, N), floats(rng, B, T, H, N), floats(rng, C, N), floats(rng, C)]


@call("selective_scan")
def _selective_scan(rng: Rng) -> Call:
    sizes = B, T, C, _, N = _scan_sizes(rng)
    return [*_scan_rows(rng, sizes), floats(rng, B, C, N), count(rng, T), out(B, T, C)]


@call("selective_scan_verify")
def _selective_scan_verify(rng: Rng) -> Call:
    sizes = B, T, C, H, N = _scan_sizes(rng)
    S = T + int(rng.integers(0, 3))
    staged: Call = [floats(rng, B, S, C), floats(rng, B, S, C), floats(rng, B, S, H, N)]
    return [*_scan_rows(rng, sizes), *staged, floats(rng, B, C, N), out(B, T, C)]


@call("selective_scan_commit")
def _selective_scan_commit(rng: Rng) -> Call:
    B, S, C, H, N = _scan_sizes(rng)
    staged: Call = [floats(rng, B, S, C), floats(rng, B, S, C), floats(rng, B, S, H, N)]
    return [floats(rng, B, C, N), *staged, floats(rng, C, N), count(rng, S), counted()]


def _conv(rng: Rng) -> tuple[tuple[int, ...], Call, Call]:
    """B, T and C; rows with taps, bias and window; start and activation."""
    B, T, C, W, start = size(rng, 2), size(rng), size(rng, 40), size(rng, 4), int(rng.integers(0, 3))
    x = floats(rng, B, T, start + C + int(rng.integers(0, 3)))
    rows: Call = [x, floats(rng, W + 1, C), maybe(rng, floats(rng, C)), floats(rng, B, W, C)]
    return (B, T, C), rows, [start, str(rng.choice(["", *ACTIVATIONS]))]


@call("short_conv")
def _short_conv(rng: Rng) -> Call:
    (B, T, C), rows, options = _conv(rng)
    return [*rows, count(rng, T), *options, out(B, T, C)]


@call("short_conv_verify")
def _short_conv_verify(rng: Rng) -> Call:
    (B, T, C), rows, options = _conv(rng)
    return [*rows, floats(rng, B, T + int(rng.integers(0, 3)), C), *options, out(B, T, C)]


@call("shift_window")
def _shift_window(rng: Rng) -> Call:
    B, T, C, W = size(rng, 2), size(rng), size(rng, 40), size(rng, 4)
    return [floats(rng, B, W, C), floats(rng, B, T, C), count(rng, T), counted()]
