"""Quantize a model's weights by torchao's recipes, in the layout of our kernels: linear layers, embeddings and tied heads.

Weights are symmetric whole numbers with one float16 scale for each group of columns. ``8da4w`` also rounds what goes into a
linear layer to 8 bits, by the same groups; ``4w`` and ``8w`` leave it as it is. Recurrent state and gates stay float32
(docs/decisions.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torchao.quantization.quant_primitives import MappingType, choose_qparams_affine, quantize_affine
from transformers import PreTrainedModel

import hybridge.runtime.kernels.linear as kernels
from hybridge.cache.errors import UsageError
from hybridge.runtime.manifest import ExportOptions

BITS = {"8da4w": 4, "4w": 4, "8w": 8}

READ_DIRECTLY = frozenset({"kv_b_proj", "router", "gate"})
"""Layers whose weight is not only multiplied with, or decides between experts, where a rounding error is a wrong choice."""

CHUNK = 1 << 18
"""Elements that are quantized at once: they stay in the processor's cache, which makes it ten times faster."""

NARROW = 16
"""A layer with so many times fewer outputs than inputs makes gates: little to gain, much to lose."""


class QuantizedLinear(nn.Module):
    """A linear layer over packed weights."""

    def __init__(self, weight: QuantizedWeight, bias: Tensor | None, *, integer: bool) -> None:
        super().__init__()
        self.packed, self.scales, self.rows = weight.packed, weight.scales, weight.rows
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
        self.integer = integer

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = torch.ops.hybridge.quantized_linear(x, self.packed, self.scales, self.bias, self.rows, self.integer)
        return out


class QuantizedEmbedding(nn.Module):
    """An embedding over packed weights, which a tied head shares. ``embed_scale`` is what some families multiply with."""

    def __init__(self, weight: QuantizedWeight, embed_scale: Tensor | None) -> None:
        super().__init__()
        self.packed, self.scales, self.rows, self.columns = weight.packed, weight.scales, weight.rows, weight.columns
        self.embed_scale = embed_scale

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = torch.ops.hybridge.quantized_embedding(tokens, self.packed, self.scales, self.rows, self.columns)
        return out if self.embed_scale is None else out * self.embed_scale


class QuantizedWeight:
    """A weight [N, K] as panels of ``bits`` and their scales."""

    def __init__(self, weight: Tensor, bits: int, group: int) -> None:
        self.rows, self.columns = weight.shape
        panels = max(1, CHUNK // (self.columns * kernels.LANES)) * kernels.LANES
        with _one_thread():
            packed, scales = zip(*(_packed(rows, bits, group) for rows in weight.detach().split(panels)), strict=True)
        self.packed = nn.Parameter(torch.cat(packed), requires_grad=False)
        self.scales = nn.Parameter(torch.cat(scales), requires_grad=False)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Threads that wait for each other at every chunk cost far more than they bring."""
    count = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(count)


def _packed(weight: Tensor, bits: int, group: int) -> tuple[Tensor, Tensor]:
    quanta, scales = _round(weight, bits, group)
    return kernels.pack(quanta, bits), kernels.pack_scales(scales)


def _round(weight: Tensor, bits: int, group: int) -> tuple[Tensor, Tensor]:
    """int8 [N, K] and float32 scales [N, K / group], which float16 holds exactly."""
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    exact, zero = choose_qparams_affine(weight, MappingType.SYMMETRIC, (1, group), torch.int8, low, high)
    scales = exact.to(torch.float16).clamp(min=2.0**-24).float()
    return quantize_affine(weight, (1, group), scales, zero, torch.int8, low, high), scales


def check_quantization(options: ExportOptions) -> None:
    """Raises UsageError for options that go together with no kernels."""
    if {options.quantize, options.embedding_quantize} == {"none"}:
        return
    if options.kernels != "hybridge":
        raise UsageError(
            f"--quantize and --embedding-quantize need --kernels hybridge, not {options.kernels}: "
            "the stock runtime has no kernels for weights that several methods share."
        )
    if options.group_size < 8 or options.group_size % 8:
        raise UsageError(f"--group-size {options.group_size} is not a multiple of 8; 32, 64 and 128 are usual.")


def quantize(model: PreTrainedModel, options: ExportOptions) -> None:
    """Replace layers of ``model`` in place, one after the other, so that little is there twice.

    Raises UsageError where the group size does not divide a layer's columns.
    """
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    tied = head is not None and head.weight is embedding.weight
    integer = options.quantize == "8da4w"
    if options.embedding_quantize != "none":
        weight = _quantized("the embedding", embedding.weight, BITS[options.embedding_quantize], options.group_size)
        model.set_input_embeddings(QuantizedEmbedding(weight, getattr(embedding, "embed_scale", None)))
        if tied:
            model.set_output_embeddings(QuantizedLinear(weight, head.bias, integer=integer))
    if options.quantize != "none":
        for name, layer in list(_linears(model)):
            if not (tied and layer is head):
                weight = _quantized(name, layer.weight, BITS[options.quantize], options.group_size)
                model.set_submodule(name, QuantizedLinear(weight, layer.bias, integer=integer))


def _linears(model: nn.Module) -> Iterator[tuple[str, nn.Linear]]:
    for name, module in model.named_modules():
        wide = type(module) is nn.Linear and module.out_features * NARROW > module.in_features
        if wide and name.rpartition(".")[2] not in READ_DIRECTLY:
            yield name, module


def _quantized(name: str, weight: Tensor, bits: int, group: int) -> QuantizedWeight:
    if weight.shape[1] % group:
        divisors = [size for size in (128, 64, 32, 16, 8) if weight.shape[1] % size == 0]
        hint = f"use --group-size {divisors[0]}" if divisors else "this model cannot be quantized in groups"
        raise UsageError(f"{name} has {weight.shape[1]} columns, which groups of {group} do not divide; {hint}.")
    return QuantizedWeight(weight, bits, group)
