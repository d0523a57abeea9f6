"""Quantize weights for the stock runtime, in the forms that XNNPACK and ExecuTorch's embeddings can run."""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from hybridge.errors import UsageError
from hybridge.export.operators.linear import Factors
from hybridge.export.pinned.stock_operators import quantized as ops
from hybridge.export.quantize.bits import (
    bits_of,
    check_columns,
    embedding_bits,
    embedding_factor,
    embedding_names,
    grid_of,
    has_tied_head,
    recipe_of,
    untied_linears,
)
from hybridge.export.quantize.rounding import round_to_nearest
from hybridge.export.weights import RoundedWeight, Rounder, WithoutWeight, constant, has_experts
from hybridge.runtime.artifact.options import ExportOptions


def check_stock_quantization(options: ExportOptions) -> None:
    """Raise UsageError for a quantization that the stock runtime has no kernels for."""
    if options.quantize not in ("none", "8da4w"):
        raise UsageError(
            f"--quantize {options.quantize} needs --kernels hybridge, not {options.kernels}: XNNPACK multiplies 4-bit weights "
            "with 8-bit activations only, which is --quantize 8da4w."
        )
    if options.quantize == "8da4w" and options.backend != "xnnpack":
        raise UsageError(f"--quantize 8da4w needs --backend xnnpack or --kernels hybridge, not --backend {options.backend}.")
    if options.embedding_quantize != "none" and options.kernels == "aten":
        raise UsageError(
            f"--embedding-quantize {options.embedding_quantize} needs --kernels hybridge or llm: "
            "core operators (aten) know no embedding of fewer bits."
        )
    patterns = (*options.bits, *(recipe_of(options).bits if options.recipe != "none" else ()))
    if any(bits == 8 for _, bits in patterns):
        asked = f"--recipe {options.recipe}" if options.recipe != "none" else "--bits with 8"
        raise UsageError(
            f"{asked} needs --kernels hybridge, not {options.kernels}: XNNPACK's groups of columns have 4 bits. "
            "--recipe small, and --bits with 4 and 32, go with these kernels."
        )
    if options.group_size < GROUPS or options.group_size % GROUPS:
        raise UsageError(f"--group-size {options.group_size} is not a multiple of {GROUPS}, as XNNPACK's groups are.")


def quantize_for_stock(model: PreTrainedModel, options: ExportOptions, rounder: Rounder = round_to_nearest) -> None:
    """Replace layers of ``model`` in place.

    Raises UsageError for experts, which would stay float32, for columns that groups do not divide, and for a tied head
    that cannot have the bits of its embedding.
    """
    if has_experts(model):
        raise UsageError("quantizing a model with experts needs --kernels hybridge; the stock runtime would keep them float32.")
    if (bits := embedding_bits(embedding_names(model), options)) < 32:
        _quantize_embedding(model, bits, options, rounder)
    for name, layer in list(untied_linears(model)):
        quantize_linear_for_stock(model, name, layer, options, rounder)


def quantize_linear_for_stock(model: nn.Module, name: str, layer: nn.Linear, options: ExportOptions, rounder: Rounder) -> None:
    """Replace linear layer ``name`` of ``model``, unless it keeps 32 bits.

    Raises UsageError if the group size does not divide its columns.
    """
    if (bits := bits_of(name, options)) < 32:
        weight = _weight(name, layer.weight, bits, options, rounder)
        model.set_submodule(name, StockLinear(weight, layer.bias))


def _quantize_embedding(model: PreTrainedModel, bits: int, options: ExportOptions, rounder: Rounder) -> None:
    """Quantize the embedding; a tied head gets the same numbers in another order, because XNNPACK cannot share them."""
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    tied = has_tied_head(model)
    if tied and (options.quantize, bits) != ("8da4w", 4):
        raise UsageError(
            f"--embedding-quantize {options.embedding_quantize} with --quantize {options.quantize} needs --kernels hybridge: "
            "this model's output layer is tied to its embedding, and XNNPACK runs it in 4 bits, with 8da4w, alone."
        )
    weight = _weight(embedding_names(model)[0], embedding.weight, bits, options, rounder)
    model.set_input_embeddings(StockEmbedding(weight, embedding_factor(embedding)))
    if tied:
        model.set_output_embeddings(StockLinear(weight, head.bias))


def _weight(name: str, weight: Tensor, bits: int, options: ExportOptions, rounder: Rounder) -> StockWeight:
    check_columns(name, weight, options.group_size, GROUPS)
    return StockWeight(rounder(name, weight, grid_of(bits, options)))


# The layers. XNNPACK takes a linear layer of 4 bits, with a bfloat16 scale for each group of columns, over inputs that
# are rounded to 8 bits token by token: written out here as the operators that it recognizes. Embeddings are
# ExecuTorch's own.

GROUPS = 32
"""Columns of which XNNPACK's groups are multiples."""

INT8 = (-128, 127, torch.int8)
INT4 = (-8, 7, torch.int8)


class StockWeight:
    """A weight [N, K] as int8 [N, K] of 4 or 8 bits and float32 scales [N, K / group], which bfloat16 holds exactly."""

    def __init__(self, weight: RoundedWeight) -> None:
        self.quanta, self.scales = constant(weight.quanta), constant(weight.scales)
        self.bits, self.group = weight.bits, weight.group


class StockLinear(WithoutWeight):
    """A linear layer of 4 bits over inputs of 8."""

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

    def some_outputs(self, ids: Tensor) -> StockLinear:
        """Return a layer with the outputs ``ids`` alone, whose rows are copies: XNNPACK shares none."""
        weight = RoundedWeight(quanta=self.quanta[ids], factors=Factors(self.scales[ids]), bits=self.bits)
        return StockLinear(StockWeight(weight), None if self.bias is None else self.bias[ids])

    def stored_bytes(self, parameter: Tensor) -> int:
        """Return the bytes of a parameter in a program: two weights in a byte, scales in bfloat16, no zero points."""
        if parameter is self.bias:
            return parameter.nbytes
        return 0 if parameter is self.zeros else parameter.nbytes // 2


class StockEmbedding(WithoutWeight):
    """An embedding of 4 or 8 bits. factor: multiplies its rows, as some families do."""

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
    """Pack int8 [V, K] of 4 bits to uint8 [V, K / 2]: the first of two in the higher half of a byte, 8 for 0."""
    values = (quanta + 8).to(torch.uint8)
    return values[:, ::2] << 4 | values[:, 1::2]
