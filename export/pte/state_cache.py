"""The cache that an ExecuTorch export carries, once the options are known to fit the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from hybridge.cache.block import CacheSizes
from hybridge.cache.errors import UsageError
from hybridge.cache.families import text_config
from hybridge.cache.hybrid_cache import HybridCache
from hybridge.cache.operations.kernels import CoreKernels, Kernels
from hybridge.export.adaptation.taps import check_taps
from hybridge.export.drafters.plan import DrafterPlan, plan_drafter
from hybridge.export.kernel_sets.hybridge import HybridgeKernels
from hybridge.export.kernel_sets.llm import LlmKernels
from hybridge.export.pte.memory import memory_bytes
from hybridge.export.quantization.quantize import check_quantization
from hybridge.runtime.artifacts.options import ExportOptions, check_verify_lens

KERNELS: Mapping[str, type[Kernels]] = {"llm": LlmKernels, "hybridge": HybridgeKernels, "aten": CoreKernels}


def build_cache(config: Any, options: ExportOptions, drafter: DrafterPlan | None = None) -> HybridCache:
    """The cache that an export with ``options`` of a model, or of its text model, of ``config`` carries.

    drafter: what ``plan_drafter`` made of the same options; one of the model's own weights if it is left out.
    Raises UsageError for impossible sizes and UnsupportedModelError for layers that there is no state for.
    """
    config = text_config(config)
    drafter = drafter or plan_drafter(config, options)[0]
    with torch.device("meta"):
        size = _cache(config, options, drafter).state_bytes()
    check_verify_lens(options)
    check_quantization(options)
    check_taps(options.tap_layers, config.num_hidden_layers)
    memory = memory_bytes()
    if size > memory // 2:
        raise UsageError(
            f"the state would take {size / 1e9:.1f} GB of the {memory / 1e9:.1f} GB that this process may have; "
            "lower --max-seq-len or --snapshot-slots."
        )
    cache = _cache(config, options, drafter)
    check_kv_cache(cache, options)
    return cache


def check_kv_cache(cache: HybridCache, options: ExportOptions) -> None:
    """Raises UsageError where nothing would be kept as it was asked for."""
    parts = cache.leaves()
    if options.kv_cache not in ("auto", "float32") and not any(part.rounded_to for part in parts):
        kinds = ", ".join(sorted({part.kind for part in parts}))
        raise UsageError(
            f"--kv-cache {options.kv_cache} is for full attention, and this model has none that it could be for: its layers "
            f"are {kinds}. Export without it."
        )


def _cache(config: Any, options: ExportOptions, drafter: DrafterPlan | None) -> HybridCache:
    sizes = CacheSizes(
        max_seq_len=options.max_seq_len,
        prefill_chunk=options.prefill_chunk,
        verify_len=options.verify_len,
        snapshot_slots=options.snapshot_slots,
        dtype=getattr(torch, options.dtype),
        kv_dtype=None if options.kv_dtype == "float32" else getattr(torch, options.kv_dtype),
        behind_window=drafter.behind_window if drafter else 0,
    )
    kernels = KERNELS[options.kernels]()
    cache = HybridCache.of_sizes(config, sizes, kernels)
    cache.layers.extend(drafter.layers(sizes, kernels) if drafter else [])
    return cache
