"""Which weights of a model are packed for our kernels, and in how many bits.

``8da4w`` rounds weights to 4 bits and what goes into a linear layer to 8, by the same groups; ``4w`` and ``8w`` leave the
latter as it is. Recurrent state and gates stay float32 (docs/decisions.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from hybridge.cache.errors import UsageError
from hybridge.export.experts import EXPERTS, projections
from hybridge.export.packed_layers import PackedEmbedding, PackedExperts, PackedLinear, PackedWeight
from hybridge.runtime.kernels.linear import LANES
from hybridge.runtime.manifest import ExportOptions

BITS: Mapping[str, int] = {"none": 32, "8da4w": 4, "4w": 4, "8w": 8}

READ_DIRECTLY = frozenset({"kv_b_proj", "dt_proj", "router", "gate"})
"""Layers whose weight is not only multiplied with, or decides between experts, where a rounding error is a wrong choice."""

NARROW = 16
"""A layer with so many times fewer outputs than inputs makes gates: little to gain, much to lose."""


def check_quantization(options: ExportOptions) -> None:
    """Raises UsageError for options that go together with no kernels."""
    if options.kv_cache != "float32" and options.kernels != "hybridge":
        raise UsageError(f"--kv-cache {options.kv_cache} needs --kernels hybridge, not {options.kernels}.")
    if not is_quantized(options):
        return
    if options.kernels != "hybridge":
        raise UsageError(
            f"--quantize and --embedding-quantize need --kernels hybridge, not {options.kernels}: "
            "the stock runtime has no kernels for weights that several methods share."
        )
    if options.group_size < 8 or options.group_size % 8:
        raise UsageError(f"--group-size {options.group_size} is not a multiple of 8; 32, 64 and 128 are usual.")


def is_quantized(options: ExportOptions) -> bool:
    """Whether any weight has fewer than 32 bits."""
    return options.quantize != "none" or options.embedding_quantize != "none"


def rounds(options: ExportOptions) -> bool:
    """Whether an artifact with ``options`` is another model than its checkpoint, if only a little."""
    return is_quantized(options) or options.kv_cache != "float32"


def pack_weights(model: PreTrainedModel, options: ExportOptions) -> None:
    """Replace layers of ``model`` in place, one after the other, so that little is there twice.

    Raises UsageError where the group size does not divide a layer's columns, or an embedding cannot be quantized.
    """
    integer, group = options.quantize == "8da4w", options.group_size
    _pack_embedding(model, BITS[options.embedding_quantize], group, integer=integer)
    for name, layer in list(linears(model)):
        weight = _packed(name, layer.weight, BITS[options.quantize], group)
        model.set_submodule(name, PackedLinear(weight, layer.bias, integer=integer))
    for name, module in list(model.named_modules()):
        for projection in projections(module):
            _pack_experts(f"{name}.{projection}", module, projection, BITS[options.quantize], group, integer=integer)
    model.config._experts_implementation = EXPERTS  # which knows packed ones


def _pack_embedding(model: PreTrainedModel, bits: int, group: int, *, integer: bool) -> None:
    """Pack the embedding and the head that is tied to it; in 32 bits only for such a head, which is why it is done."""
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    tied = head is not None and head.weight is embedding.weight
    factor = _factor(embedding)
    if factor is None and bits < 32:
        raise UsageError(f"a {type(embedding).__name__} is more than a table; export without --embedding-quantize.")
    if factor is None or (bits == 32 and not tied):
        return
    weight = _packed("the embedding", embedding.weight, bits, group)
    model.set_input_embeddings(PackedEmbedding(weight, factor))
    if tied:
        model.set_output_embeddings(PackedLinear(weight, head.bias, integer=integer and bits < 32))


def _pack_experts(name: str, module: Any, projection: str, bits: int, group: int, *, integer: bool) -> None:
    stored = getattr(module, projection).detach()
    weight = stored.transpose(1, 2) if module.is_transposed else stored  # [E, N, K]
    rows = weight.shape[1]
    flat = F.pad(weight, (0, 0, 0, -rows % LANES)).flatten(0, 1)  # each expert has panels of its own
    bias = getattr(module, f"{projection}_bias").detach() if module.has_bias else None
    delattr(module, projection)
    setattr(module, projection, PackedExperts(_packed(name, flat, bits, group), rows, bias, integer=integer))


def linears(model: nn.Module) -> Iterator[tuple[str, nn.Linear]]:
    """The linear layers that fewer bits are for, and their names."""
    for name, module in model.named_modules():
        wide = type(module) is nn.Linear and module.out_features * NARROW > module.in_features
        if wide and name.rpartition(".")[2] not in READ_DIRECTLY:
            yield name, module


def _packed(name: str, weight: Tensor, bits: int, group: int) -> PackedWeight:
    if bits < 32:
        check_columns(name, weight, group)
    return PackedWeight(weight, bits, group)


def check_columns(name: str, weight: Tensor, group: int) -> None:
    """Raises UsageError where the columns of ``weight`` are no whole number of groups."""
    if weight.shape[1] % group:
        divisors = [size for size in (128, 64, 32, 16, 8) if weight.shape[1] % size == 0]
        hint = f"use --group-size {divisors[0]}" if divisors else "this model cannot be quantized in groups"
        raise UsageError(f"{name} has {weight.shape[1]} columns, which groups of {group} do not divide; {hint}.")


def _factor(embedding: Any) -> float | None:
    """What an embedding multiplies its weight's rows with, as some families do; None where it does more than that."""
    tokens = torch.arange(min(8, embedding.weight.shape[0]))
    plain, out = embedding.weight[tokens].detach(), embedding(tokens).detach()
    at = plain.abs().argmax()
    factor = float(out.flatten()[at] / plain.flatten()[at])
    return factor if torch.allclose(out, plain * factor, rtol=1e-5) else None
