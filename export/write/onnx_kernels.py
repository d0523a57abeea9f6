"""Trace operations on state and quantized linear layers as onnxruntime's fused operators (``com.microsoft``).

The recurrences are in ``hybridge.export.write.onnx_recurrences``, with ``Held``: the tensors of the graph that buffers
of the cache stand for.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from hybridge.cache.block import Block
from hybridge.cache.operations.kernels import CoreKernels, Scoring, Visible
from hybridge.errors import UnsupportedModelError, UsageError
from hybridge.export.quantize.bits import bits_of, check_columns, check_patterns, grid_of, untied_linears
from hybridge.export.quantize.quantize import is_quantized, rounder_of
from hybridge.export.weights import RoundedWeight, Rounder, WithoutWeight, constant, has_experts
from hybridge.export.write.onnx_recurrences import RECURRENCES, Held, call
from hybridge.runtime.artifact.options import ExportOptions


class OnnxKernels(CoreKernels):
    """Put onnxruntime's operators into the graph; see ``hybridge.cache.operations.kernels.Kernels``.

    Keys and values are [B, G, R, D] in the graph.
    """

    def __init__(self) -> None:
        self.held = Held()
        self.own = tuple(kind(self.held) for kind in RECURRENCES)
        self._rows: dict[int, Tensor] = {}

    def write_rows(self, buffer: Tensor, rows: Tensor, block: Block) -> None:
        self._rows[id(buffer)] = rows  # the operator that attends also writes

    def write_window(self, buffer: Tensor, rows: Tensor, block: Block) -> None:
        self._rows[id(buffer)] = rows

    def attend(
        self, query: Tensor, keys: Tensor, values: Tensor, block: Block, scoring: Scoring, visible: Visible | None = None
    ) -> Tensor:
        if scoring.bias is not None or (scoring.sinks is not None and scoring.sinks.dim() > 1):
            raise UnsupportedModelError("--format onnx cannot add a bias by position to attention scores; --format pte can.")
        ring, past = visible.ring if visible else None, self.held[keys]
        key, value = self._rows[id(keys)], self._rows[id(values)]
        last, total = block.shared("lengths", lambda: _lengths(block))
        rows = [_widened(x, past[0].shape[3]).flatten(2) for x in (query, key, value)]
        sinks = (None, None, None, None, scoring.sinks) if scoring.sinks is not None else ()
        out, *present = call(
            "GroupQueryAttention",
            (*rows, *past, last, total, *sinks),
            {
                "num_heads": query.shape[2],
                "kv_num_heads": key.shape[2],
                "scale": float(scoring.scale),
                "softcap": float(scoring.softcap or 0.0),
                "local_window_size": ring.window if ring else -1,
            },
            (rows[0].shape, *(each.shape for each in past)),
        )
        self.held[keys] = tuple(present)
        heads: Tensor = out.unflatten(2, (query.shape[2], -1))
        return heads[..., : value.shape[3]]


def padded(width: int) -> int:
    """Return the next width of a row that the attention operator accepts."""
    return -(-width // 8) * 8


def _widened(x: Tensor, width: int) -> Tensor:
    """Pad the heads of x [B, T, H, D] with zeros, which change no score and are cut off again."""
    return x if x.shape[3] == width else F.pad(x, (0, width - x.shape[3]))


def _lengths(block: Block) -> tuple[Tensor, Tensor]:
    """Return int32 [1], the position of the block's last token, and int32 [], the number of tokens up to it."""
    last = (block.start + (block.length - 1)).to(torch.int32)
    return last, (last + 1).squeeze(0)


# Linear layers of 4 and 8 bits by onnxruntime's ``MatMulNBits``, over the same numbers as in a .pte: integers with a
# scale for each group of columns. With ``8da4w`` the operator rounds its inputs to 8 bits.


EXACT_INPUTS, INPUTS_OF_8_BITS = 1, 4
"""``accuracy_level`` of the operator."""


def check_quantization(options: ExportOptions) -> None:
    """Raise UsageError for groups that the operator does not accept."""
    if is_quantized(options) and options.group_size not in (16, 32, 64, 128, 256):
        raise UsageError(f"--group-size {options.group_size} is not one of onnxruntime's: 16, 32, 64, 128 or 256.")


def quantize_linears(model: PreTrainedModel, options: ExportOptions, rounder: Rounder | None = None) -> None:
    """Replace in place the linear layers that a .pte would have in fewer bits, too.

    Raises UsageError for experts, which only a .pte can quantize, and for columns that groups do not divide.
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
    """A linear layer of uint8 [N, K / G, G bits / 8], low bits first, and scales [N, K / G]."""

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
    """Convert int8 [N, K] around 0 to bytes around the operator's zero, 2^(bits - 1)."""
    values: Tensor = (quanta.to(torch.int16) + (1 << (bits - 1))).to(torch.uint8).unflatten(1, (-1, group))
    return values if bits == 8 else values[..., ::2] | (values[..., 1::2] << 4)
