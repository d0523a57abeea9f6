"""Linear layers and embeddings of fewer bits that the stock runtime has kernels for.

XNNPACK takes a linear layer of 4 bits, with a bfloat16 scale for each group of columns, over activations that are rounded to 8
bits, token by token: written out here as the operators that it knows it by. Embeddings are ExecuTorch's quantized operators.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from hybridge.export.layers.packed_layers import WithoutWeight, constant
from hybridge.export.layers.rounded_weight import RoundedWeight
from hybridge.export.pinned.stock_operators import quantized as ops

GROUPS = 32
"""XNNPACK's groups are multiples of so many columns."""

INT8 = (-128, 127, torch.int8)
INT4 = (-8, 7, torch.int8)


class StockWeight:
    """A weight [N, K] as int8 [N, K] of 4 or 8 bits and float32 scales [N, K / group], which bfloat16 holds exactly."""

    def __init__(self, weight: RoundedWeight) -> None:
        self.quanta, self.scales = constant(weight.quanta), constant(weight.scales)
        self.bits, self.group = weight.bits, weight.group


class StockLinear(WithoutWeight):
    """A linear layer of 4 bits over activations of 8."""

    def __init__(self, weight: StockWeight, bias: Tensor | None) -> None:
        super().__init__()
        self.quanta, self.scales = weight.quanta, weight.scales
        self.bits, self.group, self.count = weight.bits, weight.group, weight.quanta.numel()
        self.zeros = constant(torch.zeros_like(weight.scales, dtype=torch.int8))
        self.bias = None if bias is None else constant(bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map x float32 [..., K] to [..., N]."""
        scale, zero = ops.choose_qparams_per_token_asymmetric(x, torch.int8)
        x = ops.dequantize_per_token(ops.quantize_per_token(x, scale, zero, *INT8), scale, zero, *INT8, torch.float32)
        weight = ops.dequantize_per_channel_group(self.quanta, self.scales, self.zeros, *INT4, self.group, torch.float32)
        return F.linear(x, weight, self.bias)

    def stored_bytes(self, parameter: Tensor) -> int:
        """Return a program's bytes of a parameter: two weights in a byte, scales in bfloat16, no zero points."""
        if parameter is self.bias:
            return parameter.nbytes
        return 0 if parameter is self.zeros else parameter.nbytes // 2


class StockEmbedding(WithoutWeight):
    """An embedding of 4 or 8 bits; ``factor`` is what its family multiplies it with."""

    def __init__(self, weight: StockWeight, factor: float) -> None:
        super().__init__()
        self.bits, self.scales, self.factor, self.count = weight.bits, weight.scales, factor, weight.quanta.numel()
        self.table = constant(_halves(weight.quanta)) if weight.bits == 4 else weight.quanta

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens int64 [...] to float32 [..., K]."""
        look_up, (low, high, _) = (ops.embedding_4bit, INT4) if self.bits == 4 else (ops.embedding_byte, INT8)
        out = cast("Tensor", look_up(self.table, self.scales, None, low, high, tokens))
        return out if self.factor == 1.0 else out * self.factor


def _halves(quanta: Tensor) -> Tensor:
    """int8 [V, K] of 4 bits to uint8 [V, K / 2]: the first of two in the higher half of a byte, 8 for 0."""
    values = (quanta + 8).to(torch.uint8)
    return values[:, ::2] << 4 | values[:, 1::2]
