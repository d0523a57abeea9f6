"""Recurrent state in place, by hybridge's own operators."""

from __future__ import annotations

import math

import torch
from torch import Tensor

import hybridge.export.operators.recurrences  # noqa: F401  registers the operators
from hybridge.cache.block import Block
from hybridge.cache.operations.conv_window import ShortConvolution
from hybridge.cache.operations.core_recurrences import CoreRecurrences
from hybridge.cache.recurrences.delta_gates import DeltaGates, DeltaStaged
from hybridge.cache.recurrences.state_space import LinearAttention, LinearStaged, ScanStaged, Selected, StepSize
from hybridge.export.operators.elementwise import ACTIVATIONS

ops = torch.ops.hybridge


class HybridgeRecurrences(CoreRecurrences):
    """See ``hybridge.cache.operations.kernels.RecurrentKernels``.

    The delta rule stages the error of a value instead of the value, so a commit is one sum.
    """

    def convolve(
        self, x: Tensor, convolution: ShortConvolution, window: Tensor, staged: Tensor, block: Block, start: int = 0
    ) -> Tensor:
        known = convolution.activation is None or convolution.name in ACTIVATIONS
        name = convolution.name or "" if known else ""
        rows = x, convolution.taps, convolution.bias(), window
        if block.tentative:
            mixed: Tensor = ops.short_conv_verify(*rows, staged, start, name)
        else:
            mixed = ops.short_conv(*rows, block.count, start, name)
        return mixed if known else convolution.activate(mixed)

    def shift(self, window: Tensor, x: Tensor, count: Tensor) -> None:
        ops.shift_window(window, x, count)

    def delta_rule(self, mixed: Tensor, gates: DeltaGates, state: Tensor, staged: DeltaStaged, block: Block) -> Tensor:
        rows = mixed, gates.decay, gates.beta, gates.rate, gates.bias, state
        options = staged.key.shape[2], gates.floor, gates.strength
        if block.tentative:
            out: Tensor = ops.gated_delta_rule_verify(*rows, *staged.all, *options)
        else:
            out = ops.gated_delta_rule(*rows, block.count, *options)
        return out

    def commit_delta_rule(self, state: Tensor, staged: DeltaStaged, count: Tensor) -> None:
        ops.gated_delta_rule_commit(state, *staged.all, count)

    def linear_attention(
        self, mixed: Tensor, steps: StepSize | None, weights: LinearAttention, state: Tensor, staged: LinearStaged, block: Block
    ) -> Tensor:
        given = (steps.raw, steps.bias) if steps else (None, None)
        rows = mixed, *given, weights.rate, weights.skip, state
        high = None if steps is None or steps.high == math.inf else steps.high
        options = steps.start if steps else 0, steps.low if steps else 0.0, high, weights.groups, weights.by_head
        if block.tentative:
            out: Tensor = ops.linear_attention_verify(*rows, staged.mixed, staged.steps, *options)
        else:
            out = ops.linear_attention(*rows, block.count, *options)
        return out

    def commit_linear_attention(self, weights: LinearAttention, state: Tensor, staged: LinearStaged, count: Tensor) -> None:
        ops.linear_attention_commit(state, staged.mixed, staged.steps, weights.rate, count, weights.groups, weights.by_head)

    def selective_scan(
        self, selected: Selected, rate: Tensor, skip: Tensor, state: Tensor, staged: ScanStaged, block: Block
    ) -> Tensor:
        steps, inputs = selected.steps, (x.contiguous() for x in (selected.key, selected.query))
        rows = selected.x, steps.raw.contiguous(), steps.bias, *inputs, rate, skip
        if block.tentative:
            out: Tensor = ops.selective_scan_verify(*rows, *staged.all, state)
        else:
            out = ops.selective_scan(*rows, state, block.count)
        return out

    def commit_selective_scan(self, rate: Tensor, state: Tensor, staged: ScanStaged, count: Tensor) -> None:
        ops.selective_scan_commit(state, *staged.all, rate, count)

    def fading_sum(self, log_decay: Tensor, x: Tensor, state: Tensor, staged: tuple[Tensor, Tensor], block: Block) -> Tensor:
        if block.tentative:
            states: Tensor = ops.fading_sum_verify(log_decay, x, *staged, state)
        else:
            states = ops.fading_sum(log_decay, x, state, block.count)
        return states

    def commit_fading_sum(self, state: Tensor, staged: tuple[Tensor, Tensor], count: Tensor) -> None:
        ops.fading_sum_commit(state, *staged, count)
