"""The recurrent operators of ``torch.ops.hybridge`` with random inputs of one layer.

``CASES`` are what tests run, and ``Recurrence.random`` is what ``scripts/trust fuzz`` begins with.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import ClassVar, Self

import torch
from torch import Tensor

import hybridge.export.kernel_sets.hybridge  # noqa: F401  registers the operators
from hybridge.export.operators.define import ops
from hybridge.export.operators.elementwise import ACTIVATIONS

Size = Callable[[int], int]
"""Gives a number of 1 or more, mostly up to the one that it is given."""


class Recurrence(ABC):
    """state and what ``staged_shapes`` says, [B, S, ...]; inputs [B, T, ...]. Subclasses set these and the three forms.

    operators: names of the block, the verify and the commit.
    """

    operators: ClassVar[tuple[str, str, str]]
    state: Tensor
    staged_shapes: Mapping[str, tuple[int, ...]]
    input_shapes: tuple[tuple[int, ...], ...]

    @classmethod
    @abstractmethod
    def random(cls, size: Size) -> Self:
        """Any layer of the kind."""

    def inputs(self, tokens: int, real: int) -> tuple[Tensor, ...]:
        """Random inputs of a block whose tokens from ``real`` on are NaN."""
        made = tuple(torch.randn(len(self.state), tokens, *shape) for shape in self.input_shapes)
        for each in made:
            each[:, real:] = float("nan")
        return made

    def staged(self, length: int) -> dict[str, Tensor]:
        return {
            f"staged_{name}": torch.full((len(self.state), length, *shape), float("nan"))
            for name, shape in self.staged_shapes.items()
        }

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
    operators = "gated_delta_rule", "gated_delta_rule_verify", "gated_delta_rule_commit"

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

    @classmethod
    def random(cls, size: Size) -> Self:
        key_heads, floor = size(3), -5.0 if size(2) == 1 else None
        heads, K, V = key_heads * size(2), size(20) + 1, size(40)
        return cls(key_heads, heads, K, V, by_channel=size(2) == 1, floor=floor, strength=1.0 if size(2) == 1 else 2.0)

    def extend(self, *inputs: Tensor, state: Tensor) -> Tensor:
        *rows, count = inputs
        return ops.gated_delta_rule(*rows, *self.weights, state, count, *self.options)

    def verify(self, *inputs: Tensor, state: Tensor, **staged: Tensor) -> Tensor:
        return ops.gated_delta_rule_verify(*inputs, *self.weights, state, *staged.values(), *self.options)

    def commit(self, count: Tensor, *, state: Tensor, **staged: Tensor) -> Tensor:
        return ops.gated_delta_rule_commit(state, *staged.values(), count)


class GeneralizedDelta(Recurrence):
    """RWKV-7's; its inputs are query, log decay, rate, removed, key and value."""

    operators = "generalized_delta_rule", "generalized_delta_rule_verify", "generalized_delta_rule_commit"

    def __init__(self, heads: int, K: int, V: int) -> None:
        self.state = torch.randn(1, heads, K, V)
        self.input_shapes = *[(heads, K)] * 5, (heads, V)
        names = "log_decay", "rate", "removed", "key", "value"
        self.staged_shapes = dict(zip(names, self.input_shapes[1:], strict=True))

    @classmethod
    def random(cls, size: Size) -> Self:
        return cls(size(3), size(20), size(40))

    def inputs(self, tokens: int, real: int) -> tuple[Tensor, ...]:
        query, log_decay, rate, removed, key, value = super().inputs(tokens, real)
        removed = removed / removed.norm(dim=-1, keepdim=True)  # as the model has it: the state stays bounded
        return query, -log_decay.abs(), rate.sigmoid(), removed, key, value

    def extend(self, *inputs: Tensor, state: Tensor) -> Tensor:
        *rows, count = inputs
        return ops.generalized_delta_rule(*rows, state, count)

    def verify(self, *inputs: Tensor, state: Tensor, **staged: Tensor) -> Tensor:
        return ops.generalized_delta_rule_verify(*inputs, *staged.values(), state)

    def commit(self, count: Tensor, *, state: Tensor, **staged: Tensor) -> Tensor:
        return ops.generalized_delta_rule_commit(state, *staged.values(), count)


class LinearAttention(Recurrence):
    """Mamba-2's, whose steps lie at the end of a wider row, or (``by_head``) lightning attention's without any."""

    operators = "linear_attention", "linear_attention_verify", "linear_attention_commit"

    def __init__(
        self, groups: int, heads: int, P: int, N: int, *, by_head: bool, high: float | None = None, start: int = 3
    ) -> None:
        self.by_head, self.heads = by_head, heads
        self.options = (0, 0.0, None, groups, True) if by_head else (start, 0.1 if high else 0.0, high, groups, False)
        self.rate, self.skip, self.bias = -torch.rand(heads), torch.randn(heads), torch.randn(heads)
        self.state = torch.randn(1, heads, P, N)
        row = heads * (2 * N + P) if by_head else heads * P + 2 * groups * N
        self.input_shapes = ((row,),) if by_head else ((row,), (start + heads,))
        self.staged_shapes = {"mixed": (row,), "steps": (heads,)}

    @classmethod
    def random(cls, size: Size) -> Self:
        groups, high = size(3), 0.9 if size(2) == 1 else None
        return cls(groups, groups * size(3), size(20), size(20), by_head=size(2) == 1, high=high, start=size(3) - 1)

    def _rows(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor | None, ...]:
        steps = (None, None) if self.by_head else (inputs[1], self.bias)
        return inputs[0], *steps, self.rate, None if self.by_head else self.skip

    def extend(self, *inputs: Tensor, state: Tensor) -> Tensor:
        return ops.linear_attention(*self._rows(inputs), state, inputs[-1], *self.options)

    def verify(self, *inputs: Tensor, state: Tensor, **staged: Tensor) -> Tensor:
        return ops.linear_attention_verify(*self._rows(inputs), state, *staged.values(), *self.options)

    def commit(self, count: Tensor, *, state: Tensor, **staged: Tensor) -> Tensor:
        return ops.linear_attention_commit(state, *staged.values(), self.rate, count, *self.options[-2:])


class SelectiveScan(Recurrence):
    operators = "selective_scan", "selective_scan_verify", "selective_scan_commit"

    def __init__(self, channels: int, heads: int, N: int, *, biased: bool) -> None:
        self.bias = torch.randn(channels) if biased else None
        self.weights = -torch.rand(channels, N), torch.randn(channels)
        self.state = torch.randn(1, channels, N)
        self.input_shapes = (channels,), (channels,), (heads, N), (heads, N)
        self.staged_shapes = {"x": (channels,), "steps": (channels,), "key": (heads, N)}

    @classmethod
    def random(cls, size: Size) -> Self:
        heads = size(3)
        return cls(heads * size(40), heads, size(20), biased=True)

    def extend(self, *inputs: Tensor, state: Tensor) -> Tensor:
        x, steps, key, query, count = inputs
        return ops.selective_scan(x, steps, self.bias, key, query, *self.weights, state, count)

    def verify(self, *inputs: Tensor, state: Tensor, **staged: Tensor) -> Tensor:
        x, steps, key, query = inputs
        return ops.selective_scan_verify(x, steps, self.bias, key, query, *self.weights, *staged.values(), state)

    def commit(self, count: Tensor, *, state: Tensor, **staged: Tensor) -> Tensor:
        return ops.selective_scan_commit(state, *staged.values(), self.weights[0], count)


class FadingSum(Recurrence):
    operators = "fading_sum", "fading_sum_verify", "fading_sum_commit"

    def __init__(self, channels: int) -> None:
        self.state = torch.randn(1, channels)
        self.input_shapes = (channels,), (channels,)
        self.staged_shapes = {"log_decay": (channels,), "x": (channels,)}

    @classmethod
    def random(cls, size: Size) -> Self:
        return cls(size(40))

    def inputs(self, tokens: int, real: int) -> tuple[Tensor, ...]:
        log_decay, x = super().inputs(tokens, real)
        return -log_decay.abs(), x

    def extend(self, *inputs: Tensor, state: Tensor) -> Tensor:
        log_decay, x, count = inputs
        return ops.fading_sum(log_decay, x, state, count)

    def verify(self, *inputs: Tensor, state: Tensor, **staged: Tensor) -> Tensor:
        return ops.fading_sum_verify(*inputs, *staged.values(), state)

    def commit(self, count: Tensor, *, state: Tensor, **staged: Tensor) -> Tensor:
        return ops.fading_sum_commit(state, *staged.values(), count)


class ShortConv(Recurrence):
    """Channels in the middle of a row, ``start`` others before and after them; the state is the window."""

    operators = "short_conv", "short_conv_verify", "shift_window"

    def __init__(self, channels: int, kernel: int, start: int, *, biased: bool, activation: str) -> None:
        self.weights = torch.randn(kernel, channels), torch.randn(channels) if biased else None
        self.options = start, activation
        self.state = torch.randn(1, kernel - 1, channels)
        self.input_shapes = ((channels + 2 * start,),)
        self.staged_shapes = {"conv": (channels,)}

    @classmethod
    def random(cls, size: Size) -> Self:
        activations = "", *ACTIVATIONS
        activation = activations[size(len(activations)) % len(activations)]
        return cls(size(40), size(4) + 1, size(3) - 1, biased=True, activation=activation)

    def extend(self, *inputs: Tensor, state: Tensor) -> Tensor:
        x, count = inputs
        return ops.short_conv(x, *self.weights, state, count, *self.options)

    def verify(self, *inputs: Tensor, state: Tensor, **staged: Tensor) -> Tensor:
        return ops.short_conv_verify(*inputs, *self.weights, state, *staged.values(), *self.options)

    def commit(self, count: Tensor, *, state: Tensor, **staged: Tensor) -> Tensor:
        return ops.shift_window(state, *staged.values(), count)


CASES: dict[str, Callable[[], Recurrence]] = {
    "gated delta, shared keys": lambda: GatedDelta(2, 4, 24, 40, by_channel=False),
    "Kimi delta, odd": lambda: GatedDelta(3, 3, 20, 19, by_channel=True, strength=2.0),
    "Kimi delta with a floor": lambda: GatedDelta(2, 2, 24, 24, by_channel=True, floor=-5.0),
    "gated delta, in threads": lambda: GatedDelta(2, 6, 128, 136, by_channel=False),
    "RWKV-7": lambda: GeneralizedDelta(2, 24, 40),
    "RWKV-7, odd": lambda: GeneralizedDelta(3, 19, 21),
    "RWKV-7, in threads": lambda: GeneralizedDelta(5, 128, 136),
    "Mamba-2": lambda: LinearAttention(2, 6, 20, 24, by_head=False),
    "Mamba-2 with limits, odd": lambda: LinearAttention(1, 3, 7, 19, by_head=False, high=0.9),
    "Mamba-2, in threads": lambda: LinearAttention(1, 6, 64, 128, by_head=False),
    "lightning attention": lambda: LinearAttention(3, 3, 24, 24, by_head=True),
    "Mamba": lambda: SelectiveScan(70, 1, 16, biased=False),
    "Mamba by head, odd": lambda: SelectiveScan(20, 4, 19, biased=True),
    "Mamba, in threads": lambda: SelectiveScan(1029, 1, 16, biased=False),
    "RG-LRU": lambda: FadingSum(37),
    "short convolution": lambda: ShortConv(40, 4, 0, biased=False, activation="silu"),
    "short convolution inside of rows, odd": lambda: ShortConv(19, 3, 7, biased=True, activation=""),
    "short convolution, in threads": lambda: ShortConv(1029, 2, 3, biased=False, activation="gelu_tanh"),
}
