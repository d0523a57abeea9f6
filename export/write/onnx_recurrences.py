"""Trace recurrences as onnxruntime's fused operators (``com.microsoft``).

ONNX has no mutable memory, so a buffer of the cache only stands for tensors of the graph. ``Held`` maps it to the
graph's input, and after an operation to the tensor that a mutable buffer would hold, which becomes an output. Nothing
here computes: ``torch.onnx.ops`` puts the operators into the graph, and onnxruntime runs them.

Axes of states in the graph: windows [B, W, C]; matrices [B, H, K, V], those of state spaces and lightning attention
too. Staged tensors have tokens as their second axis and the rest flat, [B, T, X]; log decays are staged, so that a
commit needs no weights.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.onnx.ops import symbolic_multi_out

from hybridge.cache.block import Block
from hybridge.cache.recurrences.gated_delta_rule import DeltaGates, DeltaStaged, GatedDeltaRule
from hybridge.cache.recurrences.linear_attention import LinearAttention, LinearStaged, LinearWeights, StepSize
from hybridge.cache.recurrences.recurrence import Recurrence
from hybridge.cache.recurrences.short_conv import ConvWindow, ShortConvolution
from hybridge.errors import UnsupportedModelError
from hybridge.export.pinned.torch_export import check

Attributes = dict[str, Any]


class Held:
    """Maps buffers of the cache to tensors of the traced graph; keys and values are both under the keys' buffer."""

    def __init__(self) -> None:
        self._tensors: dict[int, tuple[Tensor, ...]] = {}

    def __getitem__(self, buffer: Tensor) -> tuple[Tensor, ...]:
        return self._tensors[id(buffer)]

    def __setitem__(self, buffer: Tensor, tensors: tuple[Tensor, ...]) -> None:
        self._tensors[id(buffer)] = tensors


class OnnxRecurrence(Recurrence):
    """A recurrence over held tensors.

    layers: the kinds of layers that it makes possible; transposed: their matrices are [B, H, V, K] in a HybridCache.
    """

    layers: ClassVar[frozenset[str]]
    transposed: ClassVar[bool] = False

    def __init__(self, held: Held) -> None:
        self.held = held

    def _recur(self, rule: str, query: Tensor, *inputs: Tensor, state: Tensor, key_heads: int) -> Tensor:
        """Run the operator and return [B, T, H V]; inputs are key, value, log decay and, for delta rules, beta."""
        key, value, *gates = inputs
        (past,) = self.held[state]
        out, present = call(
            "LinearAttention",
            (query, key, value, past, *gates),
            {"q_num_heads": key_heads, "kv_num_heads": state.shape[1], "update_rule": rule, "scale": 1.0},
            (value.shape, past.shape),
        )
        self.held[state] = (present,)
        return out

    def _accepted(self, count: Tensor, *staged: Tensor) -> list[Tensor]:
        """Return the first ``count`` tokens of staged tensors."""
        return [_first(self.held[buffer][0], count) for buffer in staged]


class OnnxConvWindow(OnnxRecurrence, ConvWindow):
    """Run by ``CausalConvWithState``."""

    layers = frozenset({"short_conv"})

    def run(
        self, x: Tensor, convolution: ShortConvolution, window: Tensor, staged: Tensor, block: Block, start: int = 0
    ) -> Tensor:
        x = x[..., start : start + window.shape[2]]
        (past,) = self.held[window]
        out, present = call(
            "CausalConvWithState",
            (x, convolution.weight(), convolution.bias(), past),
            {"activation": "none", "channels_last": 1},  # its own activation is slower than a separate one
            (x.shape, past.shape),
        )
        self.held[window], self.held[staged] = (present,), (x,)
        return convolution.activate(out)

    def extend(self, x: Tensor, window: Tensor, staged: Tensor, block: Block) -> Tensor:
        raise UnsupportedModelError("a convolution whose taps depend on the token has no operator in onnxruntime.")

    def commit(self, window: Tensor, staged: Tensor, count: Tensor) -> None:
        (past,), (inputs,) = self.held[window], self.held[staged]
        rows = torch.cat([past, inputs], dim=1)
        self.held[window] = (rows.index_select(1, count + torch.arange(past.shape[1])),)


class OnnxGatedDeltaRule(OnnxRecurrence, GatedDeltaRule):
    """Run by ``LinearAttention`` with the update rule ``gated_delta``."""

    layers = frozenset({"gated_delta_net", "kimi_delta_attention"})

    def run(self, mixed: Tensor, gates: DeltaGates, state: Tensor, staged: DeltaStaged, block: Block) -> Tensor:
        (H, K), heads = state.shape[1:3], staged.key.shape[2]
        size = heads * K
        query, key = (
            _normalized(part.unflatten(-1, (heads, K)), scale)
            for part, scale in ((mixed[..., :size], K**-0.5), (mixed[..., size : 2 * size], 1.0))
        )
        inputs = key, mixed[..., 2 * size :], *_activated(gates)
        for buffer, each in zip(staged, inputs, strict=True):
            self.held[buffer] = (each,)
        out: Tensor = self._recur("gated_delta", query, *inputs, state=state, key_heads=heads).unflatten(-1, (H, -1))
        return out

    def commit(self, state: Tensor, staged: DeltaStaged, count: Tensor) -> None:
        key, *rest = self._accepted(count, *staged)
        self._recur("gated_delta", key, key, *rest, state=state, key_heads=staged.key.shape[2])


class OnnxLinearAttention(OnnxRecurrence, LinearAttention):
    """Run by ``LinearAttention`` with the update rule ``gated``."""

    layers = frozenset({"lightning_attention", "mamba2"})
    transposed = True

    def run(
        self, mixed: Tensor, steps: StepSize | None, weights: LinearWeights, state: Tensor, staged: LinearStaged, block: Block
    ) -> Tensor:
        H = state.shape[1]
        query, key, value = _split(mixed, weights, state)
        log_decay, scaled = weights.rate.expand(*mixed.shape[:2], H), value
        if steps is not None:
            log_decay = steps.sizes * weights.rate
            scaled = (value.unflatten(-1, (H, -1)) * steps.sizes.unsqueeze(-1)).flatten(2)
        self.held[staged.mixed], self.held[staged.steps] = (torch.cat([key, scaled], dim=-1),), (log_decay,)
        out = self._recur("gated", query, key, scaled, log_decay, state=state, key_heads=_key_heads(weights, state))
        if weights.skip is None:
            return out
        skipped: Tensor = (value.unflatten(-1, (H, -1)) * weights.skip[:, None]).flatten(2)
        return out + skipped

    def commit(self, weights: LinearWeights, state: Tensor, staged: LinearStaged, count: Tensor) -> None:
        mixed, log_decay = self._accepted(count, staged.mixed, staged.steps)
        heads = _key_heads(weights, state)
        size = heads * state.shape[3]
        key, value = mixed[..., :size], mixed[..., size:]
        self._recur("gated", key, key, value, log_decay, state=state, key_heads=heads)


RECURRENCES: tuple[type[OnnxRecurrence], ...] = (OnnxConvWindow, OnnxGatedDeltaRule, OnnxLinearAttention)


def call(
    name: str, inputs: tuple[Tensor | None, ...], attributes: Attributes, shapes: tuple[torch.Size, ...]
) -> tuple[Tensor, ...]:
    """Call an operator of onnxruntime's own with float32 outputs of these shapes."""
    dtypes = [torch.float32] * len(shapes)
    return tuple(symbolic_multi_out(f"com.microsoft::{name}", inputs, attributes, dtypes=dtypes, shapes=shapes, version=1))


def _activated(gates: DeltaGates) -> tuple[Tensor, ...]:
    """Return log decay [B, T, H], or flat [B, T, H K], and beta [B, T, H]; the usual form is one operator."""
    if gates.floor is None and gates.strength == 1.0 and len(gates.bias) == len(gates.rate):
        shapes = gates.decay.shape, gates.beta.shape
        return call("LinearAttentionGate", (gates.decay, gates.bias, -gates.rate, gates.beta), {}, shapes)
    return gates.log_decay.flatten(2), gates.strengths


def _normalized(x: Tensor, scale: float) -> Tensor:
    """Normalize x [B, T, H, K] to [B, T, H K], as ``hybridge.cache.recurrences.gated_delta_rule.l2_normalize``, times scale.

    Computed as an RMS norm, which is one operator:
    ``x / sqrt(sum x^2 + e) = x / sqrt(mean x^2 + e / K) / sqrt(K)``.
    """
    K = x.shape[-1]
    weight = torch.full((K,), scale * K**-0.5)
    return F.rms_norm(x, (K,), weight, 1e-6 / K).flatten(2)


def _key_heads(weights: LinearWeights, state: Tensor) -> int:
    return state.shape[1] if weights.by_head else weights.groups


def _split(mixed: Tensor, weights: LinearWeights, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Split rows [B, T, C] into query and key [B, T, G N] and value [B, T, H P]; state is [B, H, P, N]."""
    H, P, N = state.shape[1:]
    if weights.by_head:
        query, key, value = (each.flatten(2) for each in mixed.unflatten(-1, (H, -1)).split([N, N, P], dim=-1))
        return query, key, value
    inner, size = H * P, weights.groups * N
    return mixed[..., inner + size :], mixed[..., inner : inner + size], mixed[..., :inner]


def _first(x: Tensor, count: Tensor) -> Tensor:
    n: int = count.item()  # type: ignore[assignment]  # a symbol while tracing
    check(n >= 0)
    check(n <= x.shape[1])
    return x[:, :n]
