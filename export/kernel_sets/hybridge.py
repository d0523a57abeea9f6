"""hybridge's own operators for state (``hybridge.export.operators``). Importing this module registers them with torch."""

from __future__ import annotations

import math

import torch
from torch import Tensor

import hybridge.export.operators.attention
import hybridge.export.operators.recurrences  # noqa: F401  registers the operators
from hybridge.cache.block import Block
from hybridge.cache.operations.conv_window import ShortConvolution
from hybridge.cache.operations.core_recurrences import CoreRecurrences
from hybridge.cache.operations.kernels import CoreKernels, Scoring, Visible
from hybridge.cache.operations.quantized_rows import QuantizedRows
from hybridge.cache.recurrences.delta_gates import DeltaGates, DeltaStaged
from hybridge.cache.recurrences.state_space import LinearAttention, LinearStaged, ScanStaged, Selected, StepSize
from hybridge.export.kernel_sets.llm import LlmKernels
from hybridge.export.operators.elementwise import ACTIVATIONS

# Recurrent state in place, by hybridge's own operators.


class HybridgeRecurrences(CoreRecurrences):
    """See ``hybridge.cache.operations.kernels.RecurrentKernels``.

    The delta rule stages the error of a value instead of the value, so a commit is one sum.
    """

    def convolve(
        self, x: Tensor, convolution: ShortConvolution, window: Tensor, staged: Tensor, block: Block, start: int = 0
    ) -> Tensor:
        known = convolution.activation is None or convolution.name in ACTIVATIONS
        name = convolution.name or "" if known else ""
        rows = x, convolution.taps, convolution.bias(), window
        if block.tentative:
            mixed: Tensor = ops.short_conv_verify(*rows, staged, start, name)
        else:
            mixed = ops.short_conv(*rows, block.count, start, name)
        return mixed if known else convolution.activate(mixed)

    def shift(self, window: Tensor, x: Tensor, count: Tensor) -> None:
        ops.shift_window(window, x, count)

    def delta_rule(self, mixed: Tensor, gates: DeltaGates, state: Tensor, staged: DeltaStaged, block: Block) -> Tensor:
        rows = mixed, gates.decay, gates.beta, gates.rate, gates.bias, state
        options = staged.key.shape[2], gates.floor, gates.strength
        if block.tentative:
            out: Tensor = ops.gated_delta_rule_verify(*rows, *staged.all, *options)
        else:
            out = ops.gated_delta_rule(*rows, block.count, *options)
        return out

    def commit_delta_rule(self, state: Tensor, staged: DeltaStaged, count: Tensor) -> None:
        ops.gated_delta_rule_commit(state, *staged.all, count)

    def linear_attention(
        self, mixed: Tensor, steps: StepSize | None, weights: LinearAttention, state: Tensor, staged: LinearStaged, block: Block
    ) -> Tensor:
        given = (steps.raw, steps.bias) if steps else (None, None)
        rows = mixed, *given, weights.rate, weights.skip, state
        high = None if steps is None or steps.high == math.inf else steps.high
        options = steps.start if steps else 0, steps.low if steps else 0.0, high, weights.groups, weights.by_head
        if block.tentative:
            out: Tensor = ops.linear_attention_verify(*rows, staged.mixed, staged.steps, *options)
        else:
            out = ops.linear_attention(*rows, block.count, *options)
        return out

    def commit_linear_attention(self, weights: LinearAttention, state: Tensor, staged: LinearStaged, count: Tensor) -> None:
        ops.linear_attention_commit(state, staged.mixed, staged.steps, weights.rate, count, weights.groups, weights.by_head)

    def selective_scan(
        self, selected: Selected, rate: Tensor, skip: Tensor, state: Tensor, staged: ScanStaged, block: Block
    ) -> Tensor:
        steps, inputs = selected.steps, (x.contiguous() for x in (selected.key, selected.query))
        rows = selected.x, steps.raw.contiguous(), steps.bias, *inputs, rate, skip
        if block.tentative:
            out: Tensor = ops.selective_scan_verify(*rows, *staged.all, state)
        else:
            out = ops.selective_scan(*rows, state, block.count)
        return out

    def commit_selective_scan(self, rate: Tensor, state: Tensor, staged: ScanStaged, count: Tensor) -> None:
        ops.selective_scan_commit(state, *staged.all, rate, count)

    def fading_sum(self, log_decay: Tensor, x: Tensor, state: Tensor, staged: tuple[Tensor, Tensor], block: Block) -> Tensor:
        if block.tentative:
            states: Tensor = ops.fading_sum_verify(log_decay, x, *staged, state)
        else:
            states = ops.fading_sum(log_decay, x, state, block.count)
        return states

    def commit_fading_sum(self, state: Tensor, staged: tuple[Tensor, Tensor], count: Tensor) -> None:
        ops.fading_sum_commit(state, *staged, count)


# Draft tokens by their scores, in hybridge's own operators.


class HybridgeDrafting:
    """See ``hybridge.cache.operations.drafting.DraftingKernels``."""

    def draw(self, scores: Tensor, noise: Tensor, temperature: Tensor) -> Tensor:
        out: Tensor = ops.draw(scores, noise, temperature)
        return out

    def top_chance(self, scores: Tensor) -> Tensor:
        out: Tensor = ops.top_chance(scores)
        return out

    def best_candidates(self, scores: Tensor, count: int) -> Tensor:
        out: Tensor = ops.best_candidates(scores, count)
        return out


ops = torch.ops.hybridge


class HybridgeKernels(HybridgeDrafting, HybridgeRecurrences, LlmKernels):
    """See ``hybridge.cache.operations.kernels.Kernels``."""

    def keep_state(self, state: Tensor, slots: Tensor, slot: Tensor, when: Tensor) -> None:
        ops.keep_state(state, slots, slot, when)

    def bring_back(self, slots: Tensor, state: Tensor, slot: Tensor, when: Tensor) -> None:
        ops.bring_back(slots, state, slot, when)

    def clear(self, state: Tensor, when: Tensor) -> None:
        ops.clear(state, when)

    def write_rows(self, buffer: Tensor, rows: Tensor, block: Block) -> None:
        ops.write_rows(rows, buffer, block.start)

    def write_window(self, buffer: Tensor, rows: Tensor, block: Block) -> None:
        ops.write_window(rows, buffer, block.start, block.count)

    def attend(
        self, query: Tensor, keys: Tensor, values: Tensor, block: Block, scoring: Scoring, visible: Visible | None = None
    ) -> Tensor:
        if _is_rare(scoring, query):
            return CoreKernels().attend(query, keys, values, block, scoring, visible)
        ring = visible.ring if visible else None
        mask = visible.mask if visible and not ring else None
        sees = (ring.size, ring.window, ring.chunked) if ring else (0, 0, False)
        softcap = scoring.softcap or 0.0
        out: Tensor = ops.attention(query, keys, values, block.start, mask, scoring.sinks, scoring.scale, softcap, *sees)
        return out

    def write_quantized(self, rows: QuantizedRows, key: Tensor, value: Tensor, block: Block) -> None:
        ops.write_quantized_rows(key, value, rows.keys, rows.key_scales, rows.values, rows.value_scales, block.start)

    def attend_quantized(self, query: Tensor, rows: QuantizedRows, value_dim: int, block: Block, scoring: Scoring) -> Tensor:
        if _is_rare(scoring, query):
            return super().attend_quantized(query, rows, value_dim, block, scoring)
        buffers = (rows.keys, rows.key_scales, rows.values, rows.value_scales)
        softcap = scoring.softcap or 0.0
        out: Tensor = ops.quantized_attention(query, *buffers, block.start, scoring.sinks, value_dim, scoring.scale, softcap)
        return out


def _is_rare(scoring: Scoring, query: Tensor) -> bool:
    """A bias by position, sinks by token, or several sequences: the operator knows none of them."""
    return scoring.bias is not None or query.shape[0] > 1 or (scoring.sinks is not None and scoring.sinks.dim() > 1)
