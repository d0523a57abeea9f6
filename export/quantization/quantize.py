"""Give an artifact's weights fewer bits than its checkpoint's.

``8da4w`` rounds weights to 4 bits and what goes into a linear layer to 8, by the same groups or token by token; ``4w`` and
``8w`` leave the latter as it is. ``keep`` rounds it too, and has the blocks of a GGUF file as weights. Recurrent state
and gates stay float32 (docs/decisions.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import nn
from transformers import PreTrainedModel

from hybridge.cache.errors import UsageError
from hybridge.export.layers.packed_layers import WithoutWeight
from hybridge.export.layers.rounded_weight import Rounder
from hybridge.export.quantization.asymmetric import round_in_blocks
from hybridge.export.quantization.bits import BITS, check_patterns, has_minima
from hybridge.export.quantization.kept import keep_blocks
from hybridge.export.quantization.packing import pack_linear, pack_tables, pack_weights
from hybridge.export.quantization.quantizable import linears, rounded_names
from hybridge.export.quantization.rounding import round_to_nearest
from hybridge.export.quantization.scale_search import round_by_search
from hybridge.export.quantization.stock_quantization import (
    check_stock_quantization,
    quantize_for_stock,
    quantize_linear_for_stock,
)
from hybridge.runtime.artifacts.options import ExportOptions

ROUNDERS: Mapping[str, Rounder] = {"nearest": round_to_nearest, "search": round_by_search, "blocks": round_in_blocks}
"""By the option ``rounding``."""


def rounder_of(options: ExportOptions) -> Rounder:
    """Return how weights are rounded without data, if they are not kept as they are."""
    return keep_blocks if options.quantize == "keep" else ROUNDERS[options.rounding]


def check_quantization(options: ExportOptions) -> None:
    """Raises UsageError for options that go together with no kernels."""
    if options.kv_dtype != "float32" and options.kernels != "hybridge":
        raise UsageError(f"--kv-cache {options.kv_cache} needs --kernels hybridge, not {options.kernels}.")
    if not is_quantized(options):
        return
    if odd := {5, 6} & {BITS[options.embedding_quantize], *(bits for _, bits in options.bits)}:
        if not has_minima(options):
            raise UsageError(
                f"weights of {min(odd)} bits need --rounding blocks, --format pte and --kernels hybridge; others have 4 or 8."
            )
        if options.group_size % 32:
            raise UsageError(f"weights of {min(odd)} bits are in groups of 32 or a multiple, not of {options.group_size}.")
    if options.kernels != "hybridge":
        check_stock_quantization(options)
    elif options.group_size < 8 or options.group_size % 8:
        raise UsageError(f"--group-size {options.group_size} is not a multiple of 8; 32, 64 and 128 are usual.")


def check_calibration(options: ExportOptions) -> None:
    """Raises UsageError where there is nothing to calibrate, or no way to read the rounded weights back for a validation."""
    if not is_quantized(options):
        raise UsageError("--calibrate is for rounded weights; give --quantize, --recipe or --bits too.")
    if options.quantize == "keep":
        raise UsageError("--calibrate is for weights that are rounded, and --quantize keep rounds none; give --quantize 8da4w.")
    if not options.has_own_kernels:
        other = "--format onnx" if options.format != "pte" else f"--kernels {options.kernels}"
        raise UsageError(f"--calibrate needs --format pte and --kernels hybridge, not {other}; leave one of them out.")


def is_quantized(options: ExportOptions) -> bool:
    """Return whether any weight has fewer than 32 bits."""
    return options.quantize != "none" or options.embedding_quantize != "none" or bool(options.bits)


def is_lossy(options: ExportOptions) -> bool:
    """Return whether an artifact with ``options`` is another model than its checkpoint, if only a little."""
    return is_quantized(options) or options.kv_dtype != "float32"


def is_packed(options: ExportOptions) -> bool:
    """Return whether a .pte with ``options`` has other layers than its checkpoint, if only in another order."""
    return options.kernels == "hybridge" or is_quantized(options)


def is_own(options: ExportOptions) -> bool:
    """Return whether layers become hybridge's own; onnxruntime has the same numbers."""
    return options.kernels == "hybridge" or options.format == "onnx"


def quantize(model: PreTrainedModel, options: ExportOptions, rounder: Rounder | None = None) -> None:
    """Replace layers of ``model`` in place by those that the artifact has; those that were replaced before stay.

    rounder rounds weights, without data where it is left out. Raises UsageError for what layers are not for, and for a pattern
    of bits that is for no weight.
    """
    replaced = (name for name, module in model.named_modules() if isinstance(module, WithoutWeight))
    check_patterns([*rounded_names(model), *replaced], options)
    (pack_weights if is_own(options) else quantize_for_stock)(model, options, rounder or rounder_of(options))
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):  # in the type of its file, should it have waited to be replaced
            module.weight.data = module.weight.data.float()


def quantize_drafter(drafter: nn.Module, options: ExportOptions) -> None:
    """Replace a drafter's linear layers and tables in place by those that the artifact has. Raises UsageError likewise."""
    bits = options.quantize if options.draft_quantize == "same" else options.draft_quantize
    options = replace(options, quantize=bits, recipe="none", bits=())  # which name the target's weights
    if not is_own(options):
        if bits == "none":
            return
        check_stock_quantization(options)
    for name, layer in list(linears(drafter)):
        replace_linear(drafter, name, layer, options)
    if is_own(options):
        pack_tables(drafter, options, rounder_of(options))


def replace_linear(model: nn.Module, name: str, layer: nn.Linear, options: ExportOptions) -> None:
    """Replace linear layer ``name`` of ``model``, as ``quantize`` would without data."""
    (pack_linear if is_own(options) else quantize_linear_for_stock)(model, name, layer, options, rounder_of(options))
