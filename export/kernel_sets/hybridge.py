"""Keep state by hybridge's own operators (``hybridge.export.operators``). Importing this module registers them with torch."""

from __future__ import annotations

from typing import Any

from torch import Tensor

import hybridge.export.operators.attention  # noqa: F401  registers the operators
from hybridge.cache.block import Block
from hybridge.cache.operations.kernels import CoreKernels, Scoring, Visible
from hybridge.cache.operations.quantized_rows import QuantizedRows
from hybridge.export.kernel_sets.llm import LlmKernels
from hybridge.export.operators.define import ops
from hybridge.export.operators.gated_delta_rule import HybridgeGatedDeltaRule
from hybridge.export.operators.gated_linear_scan import HybridgeGatedLinearScan
from hybridge.export.operators.generalized_delta_rule import HybridgeGeneralizedDeltaRule
from hybridge.export.operators.linear_attention import HybridgeLinearAttention
from hybridge.export.operators.selective_scan import HybridgeSelectiveScan
from hybridge.export.operators.short_conv import HybridgeConvWindow


class HybridgeKernels(LlmKernels):
    """See ``hybridge.cache.operations.kernels.Kernels``."""

    own = (
        HybridgeConvWindow(),
        HybridgeGatedDeltaRule(),
        HybridgeGatedLinearScan(),
        HybridgeGeneralizedDeltaRule(),
        HybridgeLinearAttention(),
        HybridgeSelectiveScan(),
    )

    save_slot: Any = staticmethod(ops.keep_state)
    load_slot: Any = staticmethod(ops.bring_back)
    clear: Any = staticmethod(ops.clear)
    draw: Any = staticmethod(ops.draw)
    top_probability: Any = staticmethod(ops.top_chance)
    best_candidates: Any = staticmethod(ops.best_candidates)

    def write_rows(self, buffer: Tensor, rows: Tensor, block: Block) -> None:
        ops.write_rows(rows, buffer, block.start)

    def write_window(self, buffer: Tensor, rows: Tensor, block: Block) -> None:
        ops.write_window(rows, buffer, block.start, block.count)

    def attend(
        self, query: Tensor, keys: Tensor, values: Tensor, block: Block, scoring: Scoring, visible: Visible | None = None
    ) -> Tensor:
        ring = visible.ring if visible else None
        mask = visible.mask if visible and not ring else None
        sees = (ring.size, ring.window, ring.chunked) if ring else (0, 0, False)
        softcap = scoring.softcap or 0.0
        if scoring.bias is not None and query.shape[0] == 1 and mask is None and not softcap:
            return ops.biased_attention(query, keys, values, block.start, scoring.bias, scoring.sinks, scoring.scale, *sees)
        if _is_rare(scoring, query):
            return CoreKernels().attend(query, keys, values, block, scoring, visible)
        return ops.attention(query, keys, values, block.start, mask, scoring.sinks, scoring.scale, softcap, *sees)

    def write_quantized(self, rows: QuantizedRows, key: Tensor, value: Tensor, block: Block) -> None:
        ops.write_quantized_rows(key, value, rows.keys, rows.key_scales, rows.values, rows.value_scales, block.start)

    def attend_quantized(self, query: Tensor, rows: QuantizedRows, value_dim: int, block: Block, scoring: Scoring) -> Tensor:
        if _is_rare(scoring, query):
            return super().attend_quantized(query, rows, value_dim, block, scoring)
        buffers = (rows.keys, rows.key_scales, rows.values, rows.value_scales)
        softcap = scoring.softcap or 0.0
        return ops.quantized_attention(query, *buffers, block.start, scoring.sinks, value_dim, scoring.scale, softcap)


def _is_rare(scoring: Scoring, query: Tensor) -> bool:
    """Return whether scores need a bias, sinks by token or several sequences, which the plain operators cannot do."""
    return scoring.bias is not None or query.shape[0] > 1 or (scoring.sinks is not None and scoring.sinks.dim() > 1)
