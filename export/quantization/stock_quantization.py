"""Quantize weights for the stock runtime: what XNNPACK and ExecuTorch's embeddings can run."""

from __future__ import annotations

from torch import Tensor, nn
from transformers import PreTrainedModel

from hybridge.cache.errors import UsageError
from hybridge.export.layers.experts import has_experts
from hybridge.export.layers.stock_layers import GROUPS, StockEmbedding, StockLinear, StockWeight
from hybridge.export.quantization.quantizable import BITS, check_columns, embedding_factor, has_tied_head, untied_linears
from hybridge.runtime.artifacts.options import ExportOptions


def check_stock_quantization(options: ExportOptions) -> None:
    """Raises UsageError for a quantization that the stock runtime has no kernels for."""
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
    if options.group_size < GROUPS or options.group_size % GROUPS:
        raise UsageError(f"--group-size {options.group_size} is not a multiple of {GROUPS}, as XNNPACK's groups are.")


def quantize_for_stock(model: PreTrainedModel, options: ExportOptions) -> None:
    """Replace layers of ``model`` in place.

    Raises UsageError for experts, which would stay float32, for columns that are no whole number of groups, and for a tied head
    that its embedding's bits are not for.
    """
    if has_experts(model):
        raise UsageError("quantizing a model with experts needs --kernels hybridge; the stock runtime would keep them float32.")
    if options.embedding_quantize != "none":
        _quantize_embedding(model, options)
    if options.quantize == "none":
        return
    for name, layer in list(untied_linears(model)):
        quantize_linear_for_stock(model, name, layer, options)


def quantize_linear_for_stock(model: PreTrainedModel, name: str, layer: nn.Linear, options: ExportOptions) -> None:
    """Replace linear layer ``name`` of ``model``. Raises UsageError where the group size does not divide its columns."""
    weight = _weight(name, layer.weight, BITS[options.quantize], options.group_size)
    model.set_submodule(name, StockLinear(weight, layer.bias))


def _quantize_embedding(model: PreTrainedModel, options: ExportOptions) -> None:
    """A tied head gets the same numbers, but in an order of its own: XNNPACK and the embedding cannot share one."""
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    tied = has_tied_head(model)
    if tied and (options.quantize, options.embedding_quantize) != ("8da4w", "4w"):
        raise UsageError(
            f"--embedding-quantize {options.embedding_quantize} with --quantize {options.quantize} needs --kernels hybridge: "
            "this model's output layer is tied to its embedding, and XNNPACK runs it in 4 bits, with 8da4w, alone."
        )
    weight = _weight("the embedding", embedding.weight, BITS[options.embedding_quantize], options.group_size)
    model.set_input_embeddings(StockEmbedding(weight, embedding_factor(embedding)))
    if tied:
        model.set_output_embeddings(StockLinear(weight, head.bias))


def _weight(name: str, weight: Tensor, bits: int, group: int) -> StockWeight:
    check_columns(name, weight, group, GROUPS)
    return StockWeight(weight, bits, group)
