"""Weights in panels, as our kernels read them: packed for every method and session at once, in as many bits as asked for."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from hybridge.export.layers.experts import EXPERTS, projections
from hybridge.export.layers.packed_layers import PackedEmbedding, PackedExperts, PackedLinear, PackedWeight
from hybridge.export.layers.rounded_weight import RoundedWeight, Rounder
from hybridge.export.operators.panels import LANES
from hybridge.export.pinned.transformers import choose_experts
from hybridge.export.pinned.transformers_loading import origin_of, with_origin
from hybridge.export.quantization.bits import bits_of, embedding_bits, grid_of
from hybridge.export.quantization.quantizable import (
    check_columns,
    embedding_factor,
    embedding_names,
    has_tied_head,
    linears,
    table_factor,
)
from hybridge.export.quantization.rounding import round_to_nearest
from hybridge.runtime.artifacts.options import ExportOptions


def pack_weights(model: PreTrainedModel, options: ExportOptions, rounder: Rounder = round_to_nearest) -> None:
    """Replace layers of ``model`` in place, one after the other, so that little is there twice.

    Raises UsageError where the group size does not divide a layer's columns, or an embedding cannot be quantized.
    """
    _pack_embedding(model, options, rounder)
    for name, layer in list(linears(model)):
        pack_linear(model, name, layer, options, rounder)
    for name, module in list(model.named_modules()):
        pack_experts(name, module, options, rounder)
    choose_experts(model.config, EXPERTS)  # which knows packed ones


def pack_linear(model: nn.Module, name: str, layer: nn.Linear, options: ExportOptions, rounder: Rounder) -> None:
    """Replace linear layer ``name`` of ``model``. Raises UsageError where the group size does not divide its columns."""
    weight = _packed(name, layer.weight, bits_of(name, options), options, rounder)
    model.set_submodule(name, PackedLinear(weight, layer.bias, integer=options.rounds_inputs))


def pack_experts(name: str, module: nn.Module, options: ExportOptions, rounder: Rounder) -> None:
    """Replace the weights in ``module``, if it has experts. Raises what ``pack_linear`` does."""
    for projection in projections(module):
        _pack_projection(f"{name}.{projection}", module, projection, options, rounder)


def pack_tables(model: nn.Module, options: ExportOptions, rounder: Rounder) -> None:
    """Replace the embeddings of a drafter in place, by 8 bits where its linear layers have fewer than 32.

    Their rows are read one by one, so that 4 bits would save no time.
    """
    for name, table in list(model.named_modules()):
        if options.quantize != "none" and type(table) is nn.Embedding:
            model.set_submodule(name, PackedEmbedding(_packed(name, table.weight, 8, options, rounder), 1.0))


def _pack_embedding(model: PreTrainedModel, options: ExportOptions, rounder: Rounder) -> None:
    """Pack the embedding and the head that is tied to it; in 32 bits only for such a head, which is why it is done."""
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    names, tied = embedding_names(model), has_tied_head(model)
    bits = embedding_bits(names, options)
    factor = table_factor(embedding) if bits == 32 or options.quantize == "keep" else embedding_factor(embedding)
    if factor is None or (bits == 32 and not tied):
        return
    weight = _packed(names[0], embedding.weight, bits, options, rounder)
    model.set_input_embeddings(PackedEmbedding(weight, factor))
    if tied:
        model.set_output_embeddings(PackedLinear(weight, head.bias, integer=options.rounds_inputs))


def _pack_projection(name: str, module: Any, projection: str, options: ExportOptions, rounder: Rounder) -> None:
    parameter = getattr(module, projection)
    weight = parameter.detach().transpose(1, 2) if module.is_transposed else parameter.detach()  # [E, N, K]
    experts, rows, _ = weight.shape
    bits = bits_of(name, options)

    def in_panels(part: Tensor) -> Tensor:
        """Each expert has panels of its own."""
        return F.pad(part.unflatten(0, (experts, rows)), (0, 0, 0, -rows % LANES)).flatten(0, 1)

    flat = with_origin(weight.flatten(0, 1), origin_of(parameter))
    if bits == 32:
        packed = PackedWeight.exact(in_panels(flat))
    else:
        packed = PackedWeight.of(_rounded(name, flat, bits, options, rounder).mapped(in_panels))
    delattr(module, projection)
    bias = None
    if module.has_bias:
        bias = getattr(module, f"{projection}_bias").detach()
        delattr(module, f"{projection}_bias")
    setattr(module, projection, PackedExperts(packed, rows, bias, integer=options.rounds_inputs))


def _packed(name: str, weight: Tensor, bits: int, options: ExportOptions, rounder: Rounder) -> PackedWeight:
    return PackedWeight.exact(weight) if bits == 32 else PackedWeight.of(_rounded(name, weight, bits, options, rounder))


def _rounded(name: str, weight: Tensor, bits: int, options: ExportOptions, rounder: Rounder) -> RoundedWeight:
    if options.quantize != "keep":  # whose groups are the file's
        check_columns(name, weight, options.group_size)
    return rounder(name, weight, grid_of(bits, options))
