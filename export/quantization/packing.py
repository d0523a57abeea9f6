"""Weights in panels, as our kernels read them: packed for every method and session at once, in as many bits as asked for."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from hybridge.export.layers.experts import EXPERTS, projections
from hybridge.export.layers.packed_layers import PackedEmbedding, PackedExperts, PackedLinear, PackedWeight
from hybridge.export.pinned.transformers import choose_experts
from hybridge.export.quantization.quantizable import BITS, check_columns, embedding_factor, has_tied_head, linears, table_factor
from hybridge.runtime.artifacts.options import ExportOptions
from hybridge.runtime.kernels.linear import LANES


def pack_weights(model: PreTrainedModel, options: ExportOptions) -> None:
    """Replace layers of ``model`` in place, one after the other, so that little is there twice.

    Raises UsageError where the group size does not divide a layer's columns, or an embedding cannot be quantized.
    """
    integer = options.quantize == "8da4w"
    _pack_embedding(model, BITS[options.embedding_quantize], options.group_size, integer=integer)
    for name, layer in list(linears(model)):
        pack_linear(model, name, layer, options)
    for name, module in list(model.named_modules()):
        pack_experts(name, module, options)
    choose_experts(model, EXPERTS)  # which knows packed ones


def pack_linear(model: PreTrainedModel, name: str, layer: nn.Linear, options: ExportOptions) -> None:
    """Replace linear layer ``name`` of ``model``. Raises UsageError where the group size does not divide its columns."""
    weight = _packed(name, layer.weight, BITS[options.quantize], options.group_size)
    model.set_submodule(name, PackedLinear(weight, layer.bias, integer=options.quantize == "8da4w"))


def pack_experts(name: str, module: nn.Module, options: ExportOptions) -> None:
    """Replace the weights in ``module``, if it has experts. Raises what ``pack_linear`` does."""
    for projection in projections(module):
        _pack_projection(f"{name}.{projection}", module, projection, options)


def _pack_embedding(model: PreTrainedModel, bits: int, group: int, *, integer: bool) -> None:
    """Pack the embedding and the head that is tied to it; in 32 bits only for such a head, which is why it is done."""
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    tied = has_tied_head(model)
    factor = table_factor(embedding) if bits == 32 else embedding_factor(embedding)
    if factor is None or (bits == 32 and not tied):
        return
    weight = _packed("the embedding", embedding.weight, bits, group)
    model.set_input_embeddings(PackedEmbedding(weight, factor))
    if tied:
        model.set_output_embeddings(PackedLinear(weight, head.bias, integer=integer and bits < 32))


def _pack_projection(name: str, module: Any, projection: str, options: ExportOptions) -> None:
    stored = getattr(module, projection).detach()
    weight = stored.transpose(1, 2) if module.is_transposed else stored  # [E, N, K]
    rows = weight.shape[1]
    flat = F.pad(weight, (0, 0, 0, -rows % LANES)).flatten(0, 1)  # each expert has panels of its own
    bias = getattr(module, f"{projection}_bias").detach() if module.has_bias else None
    delattr(module, projection)
    packed = _packed(name, flat, BITS[options.quantize], options.group_size)
    setattr(module, projection, PackedExperts(packed, rows, bias, integer=options.quantize == "8da4w"))


def _packed(name: str, weight: Tensor, bits: int, group: int) -> PackedWeight:
    if bits < 32:
        check_columns(name, weight, group)
    return PackedWeight(weight, bits, group)
