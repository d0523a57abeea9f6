"""Recurrent state in place, by hybridge's own operators."""

from __future__ import annotations

import torch
from torch import Tensor

import hybridge.runtime.kernels.gated_delta_rule
import hybridge.runtime.kernels.short_conv  # noqa: F401  registers the operators
from hybridge.cache.block import Block
from hybridge.cache.conv_window import ShortConvolution
from hybridge.cache.core_recurrences import CoreRecurrences
from hybridge.cache.delta_gates import DeltaGates, DeltaStaged
from hybridge.runtime.kernels.activation import ACTIVATIONS

ops = torch.ops.hybridge


class HybridgeRecurrences(CoreRecurrences):
    """See ``hybridge.cache.kernels.RecurrentKernels``. Of a value the delta rule stages its error, so a commit is one sum."""

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
