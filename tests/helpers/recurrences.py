"""Each recurrent operator of ``torch.ops.hybridge`` with random inputs of one layer: its block, its verify and its commit."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor

import hybridge.export.kernel_sets.hybridge  # noqa: F401  registers the operators

ops = torch.ops.hybridge


class Recurrence(ABC):
    """state and what ``staged_shapes`` says, [B, S, ...]; inputs [B, T, ...]. Subclasses set these and the three forms."""

    state: Tensor
    staged_shapes: Mapping[str, tuple[int, ...]]
    input_shapes: tuple[tuple[int, ...], ...]

    def inputs(self, tokens: int, real: int) -> tuple[Tensor, ...]:
        """Random inputs of a block whose tokens from ``real`` on are NaN."""
        made = tuple(torch.randn(1, tokens, *shape) for shape in self.input_shapes)
        for each in made:
            each[:, real:] = float("nan")
        return made

    def staged(self, length: int) -> dict[str, Tensor]:
        return {f"staged_{name}": torch.full((1, length, *shape), float("nan")) for name, shape in self.staged_shapes.items()}

    @abstractmethod
    def extend(self, *inputs: Tensor, state: Tensor) -> Tensor:
        """Outputs of a block; the last input is the count."""

    @abstractmethod
    def verify(self, *inputs: Tensor, state: Tensor, **staged: Tensor) -> Tensor:
        """Outputs of a tentative block."""

    @abstractmethod
    def commit(self, count: Tensor, *, state: Tensor, **staged: Tensor) -> Tensor:
        """Accept ``count`` staged tokens."""


class GatedDelta(Recurrence):
    def __init__(
        self, key_heads: int, heads: int, K: int, V: int, *, by_channel: bool, floor: float | None = None, strength: float = 1.0
    ) -> None:
        decays = heads * K if by_channel else heads
        self.options = key_heads, floor, strength
        self.weights = torch.rand(heads) * 2 + 0.1, torch.randn(decays)
        self.state = torch.randn(1, heads, K, V)
        self.input_shapes = (2 * key_heads * K + heads * V,), (decays,), (heads,)
        self.staged_shapes = {
            "key": (key_heads, K), "error": (heads, V), "log_decay": (heads, K) if by_channel else (heads,), "beta": (heads,)
        }  # fmt: skip

    def extend(self, *inputs: Tensor, state: Tensor) -> Tensor:
        *rows, count = inputs
        return ops.gated_delta_rule(*rows, *self.weights, state, count, *self.options)  # type: ignore[no-any-return]

    def verify(self, *inputs: Tensor, state: Tensor, **staged: Tensor) -> Tensor:
        return ops.gated_delta_rule_verify(*inputs, *self.weights, state, *staged.values(), *self.options)  # type: ignore[no-any-return]

    def commit(self, count: Tensor, *, state: Tensor, **staged: Tensor) -> Tensor:
        return ops.gated_delta_rule_commit(state, *staged.values(), count)  # type: ignore[no-any-return]


class LinearAttention(Recurrence):
    """Mamba-2's, whose steps lie at the end of a wider row, or (``by_head``) lightning attention's without any."""

    def __init__(self, groups: int, heads: int, P: int, N: int, *, by_head: bool, high: float | None = None) -> None:
        self.by_head, self.heads = by_head, heads
        self.options = (0, 0.0, None, groups, True) if by_head else (3, 0.1 if high else 0.0, high, groups, False)
        self.rate, self.skip, self.bias = -torch.rand(heads), torch.randn(heads), torch.randn(heads)
        self.state = torch.randn(1, heads, P, N)
        row = heads * (2 * N + P) if by_head else heads * P + 2 * groups * N
        self.input_shapes = ((row,),) if by_head else ((row,), (heads + 3,))
        self.staged_shapes = {"mixed": (row,), "steps": (heads,)}

    def _rows(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor | None, ...]:
        steps = (None, None) if self.by_head else (inputs[1], self.bias)
        return inputs[0], *steps, self.rate, None if self.by_head else self.skip

    def extend(self, *inputs: Tensor, state: Tensor) -> Tensor:
        return ops.linear_attention(*self._rows(inputs), state, inputs[-1], *self.options)  # type: ignore[no-any-return]

    def verify(self, *inputs: Tensor, state: Tensor, **staged: Tensor) -> Tensor:
        return ops.linear_attention_verify(*self._rows(inputs), state, *staged.values(), *self.options)  # type: ignore[no-any-return]

    def commit(self, count: Tensor, *, state: Tensor, **staged: Tensor) -> Tensor:
        return ops.linear_attention_commit(state, *staged.values(), self.rate, count, *self.options[-2:])  # type: ignore[no-any-return]


class SelectiveScan(Recurrence):
    def __init__(self, channels: int, heads: int, N: int, *, biased: bool) -> None:
        self.bias = torch.randn(channels) if biased else None
        self.weights = -torch.rand(channels, N), torch.randn(channels)
        self.state = torch.randn(1, channels, N)
        self.input_shapes = (channels,), (channels,), (heads, N), (heads, N)
        self.staged_shapes = {"x": (channels,), "steps": (channels,), "key": (heads, N)}

    def extend(self, *inputs: Tensor, state: Tensor) -> Tensor:
        x, steps, key, query, count = inputs
        return ops.selective_scan(x, steps, self.bias, key, query, *self.weights, state, count)  # type: ignore[no-any-return]

    def verify(self, *inputs: Tensor, state: Tensor, **staged: Tensor) -> Tensor:
        x, steps, key, query = inputs
        return ops.selective_scan_verify(x, steps, self.bias, key, query, *self.weights, *staged.values(), state)  # type: ignore[no-any-return]

    def commit(self, count: Tensor, *, state: Tensor, **staged: Tensor) -> Tensor:
        return ops.selective_scan_commit(state, *staged.values(), self.weights[0], count)  # type: ignore[no-any-return]


class FadingSum(Recurrence):
    def __init__(self, channels: int) -> None:
        self.state = torch.randn(1, channels)
        self.input_shapes = (channels,), (channels,)
        self.staged_shapes = {"log_decay": (channels,), "x": (channels,)}

    def inputs(self, tokens: int, real: int) -> tuple[Tensor, ...]:
        log_decay, x = super().inputs(tokens, real)
        return -log_decay.abs(), x

    def extend(self, *inputs: Tensor, state: Tensor) -> Tensor:
        log_decay, x, count = inputs
        return ops.fading_sum(log_decay, x, state, count)  # type: ignore[no-any-return]

    def verify(self, *inputs: Tensor, state: Tensor, **staged: Tensor) -> Tensor:
        return ops.fading_sum_verify(*inputs, *staged.values(), state)  # type: ignore[no-any-return]

    def commit(self, count: Tensor, *, state: Tensor, **staged: Tensor) -> Tensor:
        return ops.fading_sum_commit(state, *staged.values(), count)  # type: ignore[no-any-return]


class ShortConv(Recurrence):
    """Channels in the middle of a row, ``start`` others before and behind them; the state is the window."""

    def __init__(self, channels: int, kernel: int, start: int, *, biased: bool, activation: str) -> None:
        self.weights = torch.randn(kernel, channels), torch.randn(channels) if biased else None
        self.options = start, activation
        self.state = torch.randn(1, kernel - 1, channels)
        self.input_shapes = ((channels + 2 * start,),)
        self.staged_shapes = {"conv": (channels,)}

    def extend(self, *inputs: Tensor, state: Tensor) -> Tensor:
        x, count = inputs
        return ops.short_conv(x, *self.weights, state, count, *self.options)  # type: ignore[no-any-return]

    def verify(self, *inputs: Tensor, state: Tensor, **staged: Tensor) -> Tensor:
        return ops.short_conv_verify(*inputs, *self.weights, state, *staged.values(), *self.options)  # type: ignore[no-any-return]

    def commit(self, count: Tensor, *, state: Tensor, **staged: Tensor) -> Tensor:
        return ops.shift_window(state, *staged.values(), count)  # type: ignore[no-any-return]
