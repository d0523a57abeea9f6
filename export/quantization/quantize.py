"""Give an artifact's weights fewer bits than its checkpoint's.

``8da4w`` rounds weights to 4 bits and what goes into a linear layer to 8, by the same groups or token by token; ``4w`` and
``8w`` leave the latter as it is. Recurrent state and gates stay float32 (docs/decisions.md).
"""

from __future__ import annotations

from torch import nn
from transformers import PreTrainedModel

from hybridge.cache.errors import UsageError
from hybridge.export.quantization.packing import pack_linear, pack_weights
from hybridge.export.quantization.stock_quantization import (
    check_stock_quantization,
    quantize_for_stock,
    quantize_linear_for_stock,
)
from hybridge.runtime.artifacts.options import ExportOptions


def check_quantization(options: ExportOptions) -> None:
    """Raises UsageError for options that go together with no kernels."""
    if options.kv_dtype != "float32" and options.kernels != "hybridge":
        raise UsageError(f"--kv-cache {options.kv_cache} needs --kernels hybridge, not {options.kernels}.")
    if not is_quantized(options):
        return
    if options.kernels != "hybridge":
        check_stock_quantization(options)
    elif options.group_size < 8 or options.group_size % 8:
        raise UsageError(f"--group-size {options.group_size} is not a multiple of 8; 32, 64 and 128 are usual.")


def is_quantized(options: ExportOptions) -> bool:
    """Return whether any weight has fewer than 32 bits."""
    return options.quantize != "none" or options.embedding_quantize != "none"


def is_lossy(options: ExportOptions) -> bool:
    """Return whether an artifact with ``options`` is another model than its checkpoint, if only a little."""
    return is_quantized(options) or options.kv_dtype != "float32"


def is_packed(options: ExportOptions) -> bool:
    """Return whether a .pte with ``options`` has other layers than its checkpoint, if only in another order."""
    return options.kernels == "hybridge" or is_quantized(options)


def is_own(options: ExportOptions) -> bool:
    """Return whether layers become hybridge's own; onnxruntime has the same numbers."""
    return options.kernels == "hybridge" or options.format == "onnx"


def quantize(model: PreTrainedModel, options: ExportOptions) -> None:
    """Replace layers of ``model`` in place by those that the artifact has; those that were replaced before stay.

    Raises UsageError for what they are not for.
    """
    (pack_weights if is_own(options) else quantize_for_stock)(model, options)
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):  # in the type of its file, should it have waited to be replaced
            module.weight.data = module.weight.data.float()


def replace_linear(model: PreTrainedModel, name: str, layer: nn.Linear, options: ExportOptions) -> None:
    """Replace linear layer ``name`` of ``model``, as ``quantize`` would."""
    (pack_linear if is_own(options) else quantize_linear_for_stock)(model, name, layer, options)
