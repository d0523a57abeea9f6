"""Linear layers in 4 and 8 bits by onnxruntime's ``MatMulNBits``, over the very numbers that a .pte has.

Weights are whole numbers with a scale for each group of columns; ``8da4w`` lets the operator round what goes in to 8 bits too.
"""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel

from hybridge.cache.errors import UsageError
from hybridge.export.layers.experts import has_experts
from hybridge.export.layers.packed_layers import WithoutWeight, constant
from hybridge.export.layers.rounded_weight import RoundedWeight, Rounder
from hybridge.export.onnx.kernels import call
from hybridge.export.quantization.bits import bits_of, check_patterns, grid_of
from hybridge.export.quantization.quantizable import check_columns, untied_linears
from hybridge.export.quantization.quantize import is_quantized, rounder_of
from hybridge.runtime.artifacts.options import ExportOptions

EXACT_INPUTS, INPUTS_OF_8_BITS = 1, 4
"""``accuracy_level`` of the operator."""


def check_quantization(options: ExportOptions) -> None:
    """Raises UsageError for groups that the operator does not take."""
    if is_quantized(options) and options.group_size not in (16, 32, 64, 128, 256):
        raise UsageError(f"--group-size {options.group_size} is not one of onnxruntime's: 16, 32, 64, 128 or 256.")


def quantize_linears(model: PreTrainedModel, options: ExportOptions, rounder: Rounder | None = None) -> None:
    """Replace the linear layers that a .pte would have in fewer bits too, in place.

    Raises UsageError for experts, which a .pte quantizes and this cannot, and for columns that are no whole number of groups.
    """
    if has_experts(model):
        raise UsageError(
            f"--quantize {options.quantize} --format onnx is for models without experts, which would stay float32; "
            "--format pte quantizes those too."
        )
    names = [name for name, _ in untied_linears(model)]
    check_patterns(names, options)
    rounder = rounder or rounder_of(options)
    for name, layer in list(untied_linears(model)):
        if (bits := bits_of(name, options)) == 32:
            continue
        check_columns(name, layer.weight, options.group_size)
        weight = rounder(name, layer.weight, grid_of(bits, options))
        model.set_submodule(name, QuantizedLinear(weight, layer.bias, integer=options.quantize == "8da4w"))


class QuantizedLinear(WithoutWeight):
    """A linear layer [N, K] as uint8 [N, K / G, G bits / 8], low bits first, and scales [N, K / G]."""

    def __init__(self, weight: RoundedWeight, bias: Tensor | None, *, integer: bool) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.quanta.shape
        self.bits, self.group, self.count = weight.bits, weight.group, weight.quanta.numel()
        self.level = INPUTS_OF_8_BITS if integer else EXACT_INPUTS
        self.packed = constant(_packed(weight.quanta, weight.bits, weight.group))
        self.scales = constant(weight.scales)
        self.bias = bias

    def forward(self, x: Tensor) -> Tensor:
        """Map x [..., K] to [..., N]."""
        attributes = {"K": self.in_features, "N": self.out_features, "bits": self.bits, "block_size": self.group}
        (out,) = call(
            "MatMulNBits",
            (x, self.packed, self.scales, None, None, self.bias),
            attributes | {"accuracy_level": self.level},
            (torch.Size((*x.shape[:-1], self.out_features)),),
        )
        return out


def _packed(quanta: Tensor, bits: int, group: int) -> Tensor:
    """int8 [N, K] around 0 to bytes around the operator's own zero, 2^(bits - 1)."""
    values: Tensor = (quanta.to(torch.int16) + (1 << (bits - 1))).to(torch.uint8).unflatten(1, (-1, group))
    return values if bits == 8 else values[..., ::2] | (values[..., 1::2] << 4)
