"""Build what the methods need by the options of an export: the cache, and the encoder of pictures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from hybridge.cache.block import CacheSizes
from hybridge.cache.families import own_context, text_config
from hybridge.cache.hybrid_cache import HybridCache
from hybridge.cache.layers.rope_delta import RopeDeltaLayer
from hybridge.cache.operations.kernels import CoreKernels, Kernels
from hybridge.errors import UsageError
from hybridge.export.drafters.drafter import DrafterPlan
from hybridge.export.drafters.plan import plan_drafter
from hybridge.export.kernel_sets.hybridge import HybridgeKernels
from hybridge.export.kernel_sets.llm import LlmKernels
from hybridge.export.model.adapt import check_taps
from hybridge.export.model.vision import VISION, read_processor
from hybridge.export.program.memory import memory_bytes
from hybridge.export.quantize.quantize import check_quantization, is_quantized, quantize_encoder
from hybridge.export.source.checkpoint import LoadedModel
from hybridge.runtime.artifact.options import OWN_CONTEXT, ExportOptions, check_verify_lens
from hybridge.runtime.artifact.pictures import PictureDescription

KERNELS: Mapping[str, type[Kernels]] = {"llm": LlmKernels, "hybridge": HybridgeKernels, "aten": CoreKernels}

HALF_KEYS = frozenset({
    "bamba", "cohere2", "exaone4", "falcon_h1", "gemma2", "gemma3_text", "gemma3n_text", "gemma4_text", "gemma4_unified_text",
    "gpt_oss", "granite_swa", "granitemoehybrid", "hunyuan_v1_dense", "jamba", "lfm2", "lfm2_moe", "lfm3", "llama",
    "llama4_text", "minimax", "ministral", "mistral", "nemotron_h", "olmo3", "olmo_hybrid", "phi3", "qwen2", "qwen3",
    "qwen3_5_moe_text", "qwen3_5_text", "qwen3_moe", "qwen3_next", "smollm3", "zamba2", "zaya",
})  # fmt: skip
"""Families whose keys and values may be float16.

Measured as tests/export/quantize/test_quantized_attention.py does, on random weights: the largest error of a logit is below
ROUNDED_KEYS_TOLERANCE of the largest logit. A trained model of "llama": docs/benchmarks.md.
"""
STOCK_CONTEXT = 2048
"""Most tokens of a context that nobody chose, where other kernels than ours look at all of its rows for each token."""


def resolve_state(options: ExportOptions, config: Any) -> ExportOptions:
    """Return the options with a context, and with a type of keys and values, where they leave these to the model.

    A context that nobody chose is halved until its state takes a quarter of this process's memory at most. Keys and values
    become float16 beside rounded weights, in families of ``HALF_KEYS``. Raises what ``build_cache`` does.
    """
    config = text_config(config)
    is_chosen = options.max_seq_len != OWN_CONTEXT
    if not is_chosen:
        own = own_context(config)
        options = replace(options, max_seq_len=own if options.has_own_kernels else min(own, STOCK_CONTEXT))
    if options.kv_cache == "auto" and options.has_own_kernels and is_quantized(options) and config.model_type in HALF_KEYS:
        halved = replace(options, kv_cache="float16")
        if any(part.rounded_to for part in _unmade(config, halved).leaves()):
            options = halved
    while (
        not is_chosen and options.max_seq_len > STOCK_CONTEXT and _unmade(config, options).state_bytes() > memory_bytes() // 4
    ):
        options = replace(options, max_seq_len=options.max_seq_len // 2)
    return options


def _unmade(config: Any, options: ExportOptions) -> HybridCache:
    """Return a cache without memory, and without a drafter and pictures."""
    with torch.device("meta"):
        return _cache(config, options, None, None)


def build_cache(
    config: Any, options: ExportOptions, drafter: DrafterPlan | None = None, pictures: PictureDescription | None = None
) -> HybridCache:
    """Check the options, and return the cache of an export of a model, or of its text model, of ``config``.

    drafter: as ``plan_drafter`` planned it with the same options; if left out, one of the model's own weights if asked
    for. pictures: as ``describe_pictures`` described them. Raises UsageError for impossible sizes and
    UnsupportedModelError for layers without a state of ours.
    """
    config = text_config(config)
    drafter = drafter or plan_drafter(config, options)[0]
    with torch.device("meta"):
        size = _cache(config, options, drafter, pictures).state_bytes()
    check_verify_lens(options)
    check_quantization(options)
    check_taps(options.tap_layers, config.num_hidden_layers)
    memory = memory_bytes()
    if size > memory // 2:
        raise UsageError(
            f"the state would take {size / 1e9:.1f} GB of the {memory / 1e9:.1f} GB that this process may have; "
            "lower --max-seq-len or --snapshot-slots."
        )
    cache = _cache(config, options, drafter, pictures)
    check_kv_cache(cache, options)
    return cache


def check_kv_cache(cache: HybridCache, options: ExportOptions) -> None:
    """Raise UsageError if no layer would use the type of keys and values that was asked for."""
    parts = cache.leaves()
    if options.kv_cache not in ("auto", "float32") and not any(part.rounded_to for part in parts):
        kinds = ", ".join(sorted({part.kind for part in parts}))
        raise UsageError(
            f"--kv-cache {options.kv_cache} is for full attention, and this model has none that it could be for: its layers "
            f"are {kinds}. Export without it."
        )


def _cache(
    config: Any, options: ExportOptions, drafter: DrafterPlan | None, pictures: PictureDescription | None
) -> HybridCache:
    sizes = CacheSizes(
        max_seq_len=options.max_seq_len,
        prefill_chunk=options.prefill_chunk,
        verify_len=options.verify_len,
        snapshot_slots=options.snapshot_slots,
        dtype=getattr(torch, options.dtype),
        kv_dtype=None if options.kv_dtype == "float32" else getattr(torch, options.kv_dtype),
        before_window=drafter.before_window if drafter else 0,
        picture_rows=pictures.rows(options.prefill_chunk) if pictures and pictures.bidirectional else 0,
    )
    kernels = KERNELS[options.kernels]()
    cache = HybridCache.of_sizes(config, sizes, kernels)
    # A drafter's layers come last: it finds them by their number.
    cache.layers.extend([RopeDeltaLayer(sizes, kernels)] if pictures and pictures.form.axes > 1 else [])
    cache.layers.extend(drafter.layers(sizes, kernels) if drafter else [])
    return cache


def build_encoder(
    loaded: LoadedModel, options: ExportOptions, pictures: PictureDescription, warn: Callable[[str], None]
) -> nn.Module:
    """Return the encoder of pictures of a loaded model, with the artifact's weights. Raises CheckpointError."""
    assert loaded.whole is not None, "only a multimodal model is described to take pictures"
    family = VISION[loaded.whole.config.model_type]
    quantize_encoder(loaded.whole, family.parts, options, warn)
    return family.encoder(loaded.whole, read_processor(loaded.source.folder, family), pictures, KERNELS[options.kernels]())
