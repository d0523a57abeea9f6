"""Define hybridge's operators of the short convolution: schemas, references in PyTorch, and the form for ``HybridgeKernels``.

There are three: a block, of which the first ``count`` tokens change the state in place; a verify, which leaves the state
alone and stages what a commit needs; and a commit, which replays the first ``count`` staged tokens without their outputs.

Axes: B batch, T tokens, S staged tokens, X channels of a row of which C are read, from ``start`` on; W = kernel - 1.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from hybridge.cache.block import Block
from hybridge.cache.recurrences.short_conv import ConvWindow, ShortConvolution
from hybridge.export.operators.define import define, ops
from hybridge.export.operators.elementwise import ACTIVATIONS


class HybridgeConvWindow(ConvWindow):
    """Run and commit by hybridge's own operators."""

    def run(
        self, x: Tensor, convolution: ShortConvolution, window: Tensor, staged: Tensor, block: Block, start: int = 0
    ) -> Tensor:
        known = convolution.activation is None or convolution.name in ACTIVATIONS
        name = convolution.name or "" if known else ""
        rows = x, convolution.taps, convolution.bias(), window
        if block.tentative:
            mixed = ops.short_conv_verify(*rows, staged, start, name)
        else:
            mixed = ops.short_conv(*rows, block.count, start, name)
        return mixed if known else convolution.activate(mixed)

    def commit(self, window: Tensor, staged: Tensor, count: Tensor) -> None:
        ops.shift_window(window, staged, count)


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
    "shift_window", "Tensor(a!) window, Tensor x, Tensor count", shift_window, lambda window, x, count: torch.empty_like(count)
)
