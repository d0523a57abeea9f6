"""Check which options of an export are for onnxruntime too."""

from __future__ import annotations

from typing import Any

from hybridge.cache.errors import UsageError
from hybridge.export.onnx.quantized import check_quantization
from hybridge.export.onnx.traced_cache import TracedCache
from hybridge.runtime.artifacts.options import ExportOptions, check_verify_lens

PTE_ONLY = ("backend", "kernels", "embedding_quantize", "kv_cache", "tap_layers", "mtp", "draft_blocks", "draft_quantize")


def build_cache(config: Any, options: ExportOptions, drafter: object = None) -> TracedCache:
    """Return the cache that stands for the state of an ONNX export.

    Raises UsageError for options that only a .pte has, UnsupportedModelError for layers that onnxruntime has no operators for.
    """
    check_options(options)
    check_verify_lens(options)
    check_quantization(options)
    return TracedCache(config, options.max_seq_len)


def check_options(options: ExportOptions) -> None:
    """Raises UsageError for options that only a .pte has."""
    usual = ExportOptions()
    for name in PTE_ONLY:
        if getattr(options, name) != getattr(usual, name):
            refuse(name, getattr(options, name))


def refuse(name: str, value: object) -> None:
    """Raises UsageError for an option that only a .pte has."""
    option = "--" + name.replace("_", "-")
    given = option if isinstance(value, bool | tuple) else f"{option} {value}"
    raise UsageError(f"{given} is for --format pte; an ONNX export has onnxruntime's own operators. Leave it out.")
