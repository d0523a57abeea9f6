"""Trace operations on state and quantized linear layers as onnxruntime's fused operators (``com.microsoft``).

ONNX has no mutable memory, so a buffer of the cache only stands for tensors of the graph. ``held`` maps it to the
graph's input, and after an operation to the tensor that a mutable buffer would hold, which becomes an output. Nothing
here computes: ``torch.onnx.ops`` puts the operators into the graph, and onnxruntime runs them.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.onnx.ops import symbolic_multi_out
from transformers import PreTrainedModel

from hybridge.cache.block import Block
from hybridge.cache.errors import UnsupportedModelError, UsageError
from hybridge.cache.operations.conv_window import ShortConvolution
from hybridge.cache.operations.kernels import CoreKernels, Scoring, Visible
from hybridge.cache.pinned import check
from hybridge.cache.recurrences.delta_gates import DeltaGates, DeltaStaged
from hybridge.cache.recurrences.state_space import LinearAttention, LinearStaged, StepSize
from hybridge.export.layers import RoundedWeight, Rounder, WithoutWeight, constant, has_experts
from hybridge.export.quantize.bits import bits_of, check_columns, check_patterns, grid_of, untied_linears
from hybridge.export.quantize.quantize import is_quantized, rounder_of
from hybridge.runtime.artifacts.options import ExportOptions

Attributes = dict[str, Any]


class Held:
    """Maps buffers of the cache to tensors of the traced graph; keys and values are both under the keys' buffer."""

    def __init__(self) -> None:
        self._tensors: dict[int, tuple[Tensor, ...]] = {}

    def __getitem__(self, buffer: Tensor) -> tuple[Tensor, ...]:
        return self._tensors[id(buffer)]

    def __setitem__(self, buffer: Tensor, tensors: tuple[Tensor, ...]) -> None:
        self._tensors[id(buffer)] = tensors


class OnnxKernels(CoreKernels):
    """Puts onnxruntime's operators into the graph; see ``hybridge.cache.operations.kernels.Kernels``.

    Axes of states in the graph: keys and values [B, G, R, D]; windows [B, W, C]; matrices [B, H, K, V], those of state
    spaces and lightning attention too.

    Staged tensors have tokens as their second axis and the rest flat, [B, T, X]; log decays are staged, so that a
    commit needs no weights.
    """

    def __init__(self) -> None:
        self.held = Held()
        self._rows: dict[int, Tensor] = {}

    # Attention

    def write_rows(self, buffer: Tensor, rows: Tensor, block: Block) -> None:
        self._rows[id(buffer)] = rows  # the operator that attends also writes

    def write_window(self, buffer: Tensor, rows: Tensor, block: Block) -> None:
        self._rows[id(buffer)] = rows

    def attend(
        self, query: Tensor, keys: Tensor, values: Tensor, block: Block, scoring: Scoring, visible: Visible | None = None
    ) -> Tensor:
        if scoring.bias is not None or (scoring.sinks is not None and scoring.sinks.dim() > 1):
            raise UnsupportedModelError("--format onnx cannot add a bias by position to attention scores; --format pte can.")
        ring, past = visible.ring if visible else None, self.held[keys]
        key, value = self._rows[id(keys)], self._rows[id(values)]
        last, total = block.shared("lengths", lambda: _lengths(block))
        rows = [_widened(x, past[0].shape[3]).flatten(2) for x in (query, key, value)]
        sinks = (None, None, None, None, scoring.sinks) if scoring.sinks is not None else ()
        out, *present = call(
            "GroupQueryAttention",
            (*rows, *past, last, total, *sinks),
            {
                "num_heads": query.shape[2],
                "kv_num_heads": key.shape[2],
                "scale": float(scoring.scale),
                "softcap": float(scoring.softcap or 0.0),
                "local_window_size": ring.window if ring else -1,
            },
            (rows[0].shape, *(each.shape for each in past)),
        )
        self.held[keys] = tuple(present)
        heads: Tensor = out.unflatten(2, (query.shape[2], -1))
        return heads[..., : value.shape[3]]

    # Short convolutions

    def convolve(
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

    def extend_window(self, x: Tensor, window: Tensor, staged: Tensor, block: Block) -> Tensor:
        raise UnsupportedModelError("a convolution whose taps depend on the token has no operator in onnxruntime.")

    def shift(self, window: Tensor, x: Tensor, count: Tensor) -> None:
        (past,), (inputs,) = self.held[window], self.held[x]
        rows = torch.cat([past, inputs], dim=1)
        self.held[window] = (rows.index_select(1, count + torch.arange(past.shape[1])),)

    # Delta rules

    def delta_rule(self, mixed: Tensor, gates: DeltaGates, state: Tensor, staged: DeltaStaged, block: Block) -> Tensor:
        (H, K), heads = state.shape[1:3], staged.key.shape[2]
        size = heads * K
        query, key = (
            _normalized(part.unflatten(-1, (heads, K)), scale)
            for part, scale in ((mixed[..., :size], K**-0.5), (mixed[..., size : 2 * size], 1.0))
        )
        inputs = key, mixed[..., 2 * size :], *_activated(gates)
        for buffer, each in zip(staged.all, inputs, strict=True):
            self.held[buffer] = (each,)
        out: Tensor = self._recur("gated_delta", query, *inputs, state=state, key_heads=heads).unflatten(-1, (H, -1))
        return out

    def commit_delta_rule(self, state: Tensor, staged: DeltaStaged, count: Tensor) -> None:
        key, *rest = self._accepted(count, *staged.all)
        self._recur("gated_delta", key, key, *rest, state=state, key_heads=staged.key.shape[2])

    # Linear attention and state spaces

    def linear_attention(
        self, mixed: Tensor, steps: StepSize | None, weights: LinearAttention, state: Tensor, staged: LinearStaged, block: Block
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

    def commit_linear_attention(self, weights: LinearAttention, state: Tensor, staged: LinearStaged, count: Tensor) -> None:
        mixed, log_decay = self._accepted(count, staged.mixed, staged.steps)
        heads = _key_heads(weights, state)
        size = heads * state.shape[3]
        key, value = mixed[..., :size], mixed[..., size:]
        self._recur("gated", key, key, value, log_decay, state=state, key_heads=heads)

    def _recur(self, rule: str, query: Tensor, *inputs: Tensor, state: Tensor, key_heads: int) -> Tensor:
        """Run the recurrence and return [B, T, H V]; inputs are key, value, log decay and, for delta rules, beta."""
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


def call(
    name: str, inputs: tuple[Tensor | None, ...], attributes: Attributes, shapes: tuple[torch.Size, ...]
) -> tuple[Tensor, ...]:
    """Call an operator of onnxruntime's own with float32 outputs of these shapes."""
    dtypes = [torch.float32] * len(shapes)
    return tuple(symbolic_multi_out(f"com.microsoft::{name}", inputs, attributes, dtypes=dtypes, shapes=shapes, version=1))


def padded(width: int) -> int:
    """Return the next width of a row that the attention operator accepts."""
    return -(-width // 8) * 8


def _widened(x: Tensor, width: int) -> Tensor:
    """Pad the heads of x [B, T, H, D] with zeros, which change no score and are cut off again."""
    return x if x.shape[3] == width else F.pad(x, (0, width - x.shape[3]))


def _lengths(block: Block) -> tuple[Tensor, Tensor]:
    """Return int32 [1], the position of the block's last token, and int32 [], the number of tokens up to it."""
    last = (block.start + (block.length - 1)).to(torch.int32)
    return last, (last + 1).squeeze(0)


def _activated(gates: DeltaGates) -> tuple[Tensor, ...]:
    """Return log decay [B, T, H], or flat [B, T, H K], and beta [B, T, H]; the usual form is one operator."""
    if gates.floor is None and gates.strength == 1.0 and len(gates.bias) == len(gates.rate):
        shapes = gates.decay.shape, gates.beta.shape
        return call("LinearAttentionGate", (gates.decay, gates.bias, -gates.rate, gates.beta), {}, shapes)
    return gates.log_decay.flatten(2), gates.strengths


def _normalized(x: Tensor, scale: float) -> Tensor:
    """Normalize x [B, T, H, K] to [B, T, H K], as ``hybridge.cache.recurrences.delta_gates.l2_normalize``, times scale.

    Computed as an RMS norm, which is one operator:
    ``x / sqrt(sum x^2 + e) = x / sqrt(mean x^2 + e / K) / sqrt(K)``.
    """
    K = x.shape[-1]
    weight = torch.full((K,), scale * K**-0.5)
    return F.rms_norm(x, (K,), weight, 1e-6 / K).flatten(2)


def _key_heads(weights: LinearAttention, state: Tensor) -> int:
    return state.shape[1] if weights.by_head else weights.groups


def _split(mixed: Tensor, weights: LinearAttention, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
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


# Linear layers of 4 and 8 bits by onnxruntime's ``MatMulNBits``, over the same numbers as in a .pte: integers with a
# scale for each group of columns. With ``8da4w`` the operator rounds its inputs to 8 bits.


EXACT_INPUTS, INPUTS_OF_8_BITS = 1, 4
"""``accuracy_level`` of the operator."""


def check_quantization(options: ExportOptions) -> None:
    """Raise UsageError for groups that the operator does not accept."""
    if is_quantized(options) and options.group_size not in (16, 32, 64, 128, 256):
        raise UsageError(f"--group-size {options.group_size} is not one of onnxruntime's: 16, 32, 64, 128 or 256.")


def quantize_linears(model: PreTrainedModel, options: ExportOptions, rounder: Rounder | None = None) -> None:
    """Replace in place the linear layers that a .pte would have in fewer bits, too.

    Raises UsageError for experts, which only a .pte can quantize, and for columns that groups do not divide.
    """
    if has_experts(model):
        raise UsageError(
            f"--quantize {options.quantize} --format onnx is for models without experts, which would stay float32; "
            "--format pte quantizes those too."
        )
    names = [name for name, _ in untied_linears(model)]
    check_patterns(names, options)
    rounder = rounder or rounder_of(options)
    for name, layer in list(untied_linears(model)):
        if (bits := bits_of(name, options)) == 32:
            continue
        check_columns(name, layer.weight, options.group_size)
        weight = rounder(name, layer.weight, grid_of(bits, options))
        model.set_submodule(name, QuantizedLinear(weight, layer.bias, integer=options.quantize == "8da4w"))


class QuantizedLinear(WithoutWeight):
    """A linear layer of uint8 [N, K / G, G bits / 8], low bits first, and scales [N, K / G]."""

    def __init__(self, weight: RoundedWeight, bias: Tensor | None, *, integer: bool) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.quanta.shape
        self.bits, self.group, self.count = weight.bits, weight.group, weight.quanta.numel()
        self.level = INPUTS_OF_8_BITS if integer else EXACT_INPUTS
        self.packed = constant(_packed(weight.quanta, weight.bits, weight.group))
        self.scales = constant(weight.scales)
        self.bias = bias

    def forward(self, x: Tensor) -> Tensor:
        """Map x [..., K] to [..., N]."""
        attributes = {"K": self.in_features, "N": self.out_features, "bits": self.bits, "block_size": self.group}
        (out,) = call(
            "MatMulNBits",
            (x, self.packed, self.scales, None, None, self.bias),
            attributes | {"accuracy_level": self.level},
            (torch.Size((*x.shape[:-1], self.out_features)),),
        )
        return out


def _packed(quanta: Tensor, bits: int, group: int) -> Tensor:
    """Convert int8 [N, K] around 0 to bytes around the operator's zero, 2^(bits - 1)."""
    values: Tensor = (quanta.to(torch.int16) + (1 << (bits - 1))).to(torch.uint8).unflatten(1, (-1, group))
    return values if bits == 8 else values[..., ::2] | (values[..., 1::2] << 4)
