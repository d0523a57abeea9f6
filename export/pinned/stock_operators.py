"""ExecuTorch 1.5.1: operators that its wheel registers with torch when a module is imported, called by position.

torch checks types alone, so an argument that moved among others of its type would be read as another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from hybridge.export.pinned.imports import read_by_c, without_lowerings, without_rewrites

with without_rewrites():
    import torch.export._remove_auto_functionalized_pass
with read_by_c():
    import executorch.exir  # noqa: F401  registers torch.ops.quantized_decomposed
with without_lowerings():
    from executorch.extension.llm.custom_ops import custom_ops  # noqa: F401  registers torch.ops.llama

llama: Any = torch.ops.llama
"""Attention and writes of rows at the cost of the actual length. The writing ones change their argument ``cache``."""

quantized: Any = torch.ops.quantized_decomposed
"""Rounding and look-ups of rounded rows; XNNPACK's partitioner knows a linear layer of 4 bits by exactly these."""

SCHEMAS: Mapping[str, str] = {
    "llama::update_cache": "(Tensor value, Tensor(a!) cache, SymInt start_pos) -> Tensor",
    "llama::update_cache_with_indices": "(Tensor value, Tensor(a!) cache, SymInt start_pos, Tensor indices) -> Tensor",
    "llama::custom_sdpa": (
        "(Tensor query, Tensor key, Tensor value, SymInt start_pos, Tensor? attn_mask=None, float drpout_p=0., "
        "bool is_causal=False, float? scale=None) -> Tensor"
    ),
    "llama::gated_delta_rule": (
        "(Tensor query, Tensor key, Tensor value, Tensor decay, Tensor beta, Tensor initial_state) -> (Tensor, Tensor)"
    ),
    "llama::channelwise_gated_delta_rule": (
        "(Tensor query, Tensor key, Tensor value, Tensor decay, Tensor beta, Tensor initial_state) -> (Tensor, Tensor)"
    ),
    "quantized_decomposed::choose_qparams_per_token_asymmetric": "(Tensor input, ScalarType dtype) -> (Tensor, Tensor)",
    "quantized_decomposed::quantize_per_token": (
        "(Tensor input, Tensor scales, Tensor zero_points, int quant_min, int quant_max, ScalarType dtype) -> Tensor"
    ),
    "quantized_decomposed::dequantize_per_token": (
        "(Tensor input, Tensor scales, Tensor zero_points, int quant_min, int quant_max, ScalarType dtype, "
        "ScalarType output_dtype) -> Tensor"
    ),
    "quantized_decomposed::dequantize_per_channel_group": (
        "(Tensor input, Tensor scales, Tensor? zero_points, int quant_min, int quant_max, ScalarType dtype, int group_size, "
        "ScalarType output_dtype) -> Tensor"
    ),
    "quantized_decomposed::embedding_4bit": (
        "(Tensor weight, Tensor weight_scales, Tensor? weight_zero_points, int weight_quant_min, int weight_quant_max, "
        "Tensor indices) -> Tensor"
    ),
    "quantized_decomposed::embedding_byte": (
        "(Tensor weight, Tensor weight_scales, Tensor? weight_zero_points, int weight_quant_min, int weight_quant_max, "
        "Tensor indices) -> Tensor"
    ),
}
"""The schemas that the calls in ``export/kernel_sets/llm.py`` and ``export/quantize/stock.py`` are written for."""
