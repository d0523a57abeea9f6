"""Weights in few bits, and layers over them as our kernels read them, in panels (``runtime/kernels/panels.h``).

``RoundedWeight`` is whole numbers with their factors, ``PackedWeight`` the same in panels, and ``PackedLinear``,
``PackedExperts`` and ``PackedEmbedding`` are the layers. Importing this module registers the operators and our experts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

import hybridge.export.operators.linear  # noqa: F401  registers the operators
from hybridge.export.operators.linear import LANES, Factors, numbers, pack
from hybridge.export.operators.parts import by_rows
from hybridge.export.pinned.transformers import (
    Origin,
    gated,
    gather_experts,
    initialized,
    is_experts,
    origin_of,
    register_experts,
    with_origin,
)


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The numbers to round to: integers of ``bits``, with one scale of type ``scale`` for ``group`` columns.

    minima: each group has a minimum, too, and both are integers in superblocks; without minima, bits are 4 or 8.
    signed_scales: kernels take negative scales, so that -8, which has no positive counterpart, may stand for either
    sign.
    """

    bits: int
    group: int
    scale: torch.dtype = torch.float16
    signed_scales: bool = False
    minima: bool = False

    @property
    def high(self) -> int:
        """Return the highest integer."""
        return (1 << (self.bits - 1)) - 1

    @property
    def low(self) -> int:
        """Return the lowest integer, -127 for 8 bits because some processors' products need a positive counterpart."""
        return -8 if self.bits == 4 else -self.high


@dataclass(frozen=True, kw_only=True)
class RoundedWeight:
    """A weight [N, K] as int8 ``quanta`` [N, K] of ``bits`` bits and their ``factors`` by rows.

    Or as floats ``quanta`` of 16 or 32 bits without factors. note: the reason why it was rounded in spite of ``keep``;
    origin: the tensors of a GGUF file whose blocks these are.
    """

    quanta: Tensor
    factors: Factors
    bits: int
    note: str = ""
    origin: Origin | None = None

    def mapped(self, change: Callable[[Tensor], Tensor]) -> RoundedWeight:
        """Apply ``change`` to each tensor that has a row for each row of the weight."""
        return replace(self, quanta=change(self.quanta), factors=self.factors.mapped(change))

    @property
    def scales(self) -> Tensor:
        """Return the scales [N, K / group] of a weight without other factors."""
        assert self.factors.scales is not None
        return self.factors.scales

    @property
    def group(self) -> int:
        """Return the number of columns that share a scale."""
        assert self.factors.scales is not None
        return self.quanta.shape[1] // self.factors.scales.shape[1]

    def numbers(self) -> Tensor:
        """Return the weight [N, K] in float32."""
        return numbers(self.quanta, self.bits, self.factors)


Rounder = Callable[[str, Tensor, Grid], RoundedWeight]
"""Rounds the float weight [N, K] of a name to a grid; it may use statistics of the inputs of the layer of that name."""


class PackedWeight:
    """A weight [N, K] of ``bits`` bits and its factors, in panels.

    note: as of a RoundedWeight; origin: the tensors whose blocks these are, or whose numbers if ``bits`` are 32.
    """

    def __init__(
        self, packed: Tensor, factors: Factors, shape: tuple[int, int], bits: int, note: str = "", origin: Origin | None = None
    ) -> None:
        self.rows, self.columns = shape
        self.bits, self.note, self.origin = bits, note, origin
        self.packed = constant(packed)
        self.factors = Factors(*(None if part is None else constant(part) for part in factors))

    @classmethod
    def exact(cls, weight: Tensor, origin: Origin | None = None) -> PackedWeight:
        """Pack numbers in float32."""
        rows, columns = weight.shape
        return cls(
            torch.cat(by_rows(weight, lambda part: pack(part.float(), 32))), Factors(), (rows, columns), 32, origin=origin
        )

    @classmethod
    def of(cls, weight: RoundedWeight) -> PackedWeight:
        """Pack whole numbers and their factors; scales become float16."""
        rows, columns = weight.quanta.shape
        packed = torch.cat(by_rows(weight.quanta, lambda part: pack(part, weight.bits)))
        return cls(packed, weight.factors.in_panels(), (rows, columns), weight.bits, weight.note, weight.origin)


class WithoutWeight(nn.Module):
    """A layer that stores the ``count`` numbers of its weight in ``bits`` bits. note: as of a RoundedWeight."""

    bits: int
    count: int
    note: str = ""

    @property
    def weight(self) -> Tensor:
        """Return an empty tensor of the type to compute in, because some models ask a layer's weight for its type or device.

        It is marked as initialized, because others initialize it once they are read.
        """
        return initialized(torch.empty(0))


class _Packed(WithoutWeight):
    """A layer over a packed weight, whose tensors are the layer's parameters."""

    def __init__(self, weight: PackedWeight) -> None:
        super().__init__()
        self.packed, self.bits, self.note, self.origin = weight.packed, weight.bits, weight.note, weight.origin
        self.count = weight.rows * weight.columns
        self.scales, self.minima, self.superscales, self.table = weight.factors

    @property
    def factors(self) -> Factors:
        """Return the weight's factors, in panels."""
        return Factors(self.scales, self.minima, self.superscales, self.table)


class PackedLinear(_Packed):
    """A linear layer. integer: round inputs to 8 bits, by the groups of the weight if it has any."""

    def __init__(self, weight: PackedWeight, bias: Tensor | None, *, integer: bool) -> None:
        super().__init__(weight)
        self.out_features, self.integer = weight.rows, integer and weight.bits < 16
        self.bias = None if bias is None else constant(bias)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = torch.ops.hybridge.block_linear(x, self.packed, *self.factors, self.bias, self.out_features, self.integer)
        return out

    def some_outputs(self, ids: Tensor) -> PanelLinear:
        """Return a layer over the same weight with the outputs ``ids`` alone: whole panels, ascending."""
        return PanelLinear(self, ids[::LANES] // LANES, len(ids))


class PanelLinear(nn.Module):
    """Some outputs of a packed linear layer, whose weight it shares: those in whole panels of 16 rows.

    panels: int64 [P], their indices, ascending. outputs: 16 P, or less by the last outputs of the last panel.
    """

    def __init__(self, layer: PackedLinear, panels: Tensor, outputs: int) -> None:
        super().__init__()
        self.packed, self.bias, self.integer = layer.packed, layer.bias, layer.integer
        self.scales, self.minima, self.superscales, self.table = layer.factors
        self.panels, self.rows, self.out_features = constant(panels), layer.out_features, outputs

    def forward(self, x: Tensor) -> Tensor:
        """Map x float32 [..., K] to [..., outputs]."""
        factors = (self.scales, self.minima, self.superscales, self.table)
        out: Tensor = torch.ops.hybridge.panel_linear(
            x, self.packed, *factors, self.bias, self.panels, self.rows, self.out_features, self.integer
        )
        return out


class PackedExperts(_Packed):
    """One projection of all experts, of weights [E, N, K] and biases [E, N]; each row goes through one expert.

    rows: N; integer: as of a linear layer.
    """

    def __init__(self, weight: PackedWeight, rows: int, bias: Tensor | None, *, integer: bool) -> None:
        super().__init__(weight)
        self.out_features, self.integer = rows, integer and weight.bits < 16
        panels = -(-rows // LANES)  # of each expert; the last one is padded
        self.experts = weight.rows // (panels * LANES)
        self.count = self.experts * rows * weight.columns
        self.bias = None if bias is None else constant(bias)

    def forward(self, x: Tensor, chosen: Tensor) -> Tensor:
        """Map x [M, K], chosen int64 [M] to [M, N]."""
        out: Tensor = torch.ops.hybridge.block_experts(
            x, chosen, self.packed, *self.factors, self.bias, self.out_features, self.integer
        )
        return out


class PackedEmbedding(_Packed):
    """An embedding, whose weight a tied head may share. factor: multiplies its rows, as some families do."""

    def __init__(self, weight: PackedWeight, factor: float) -> None:
        super().__init__(weight)
        self.shape, self.factor = (weight.rows, weight.columns), factor

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = torch.ops.hybridge.block_embedding(tokens, self.packed, *self.factors, *self.shape)
        return out if self.factor == 1.0 else out * self.factor


def constant(values: Tensor) -> nn.Parameter:
    """Return a parameter, which a program stores as a constant; a buffer would be state."""
    parameter = nn.Parameter(values, requires_grad=False)
    with_origin(parameter, origin_of(values))
    return parameter


def computed(tensor: Tensor, change: Callable[[Tensor], Tensor]) -> nn.Parameter:
    """Return the constant that ``change`` makes of another one, which has an origin if that one has."""
    parameter, origin = constant(change(tensor.detach()).contiguous()), origin_of(tensor)
    with_origin(parameter, None if origin is None else origin.changed(change))
    return parameter


# Experts with static shapes: no loop over the experts that were chosen, no data-dependent sizes. Packed weights have an
# operator that reads the chosen ones, once. With others, few tokens gather the weights of the experts that they chose,
# and many tokens run every expert over all of them, which reads each weight once instead of once for each choice. Axes:
# T tokens, E experts, H hidden, I intermediate of an expert, N choices of a token.

EXPERTS = "hybridge"


def has_experts(model: nn.Module) -> bool:
    """Return whether any module of ``model`` has experts."""
    return any(projections(module) for module in model.modules())


def projections(module: nn.Module) -> list[str]:
    """Return the names of an experts module's stacked weights, first to last; none for a module of another kind."""
    return [_first(module), "down_proj"] if is_experts(module) else []


def run_experts(module: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """Run experts for transformers: hidden_states [T, H], top_k_index and top_k_weights [T, N] to [T, H]."""
    if isinstance(module.down_proj, PackedExperts):
        return _run_packed(module, hidden_states, top_k_index, top_k_weights)
    choices = top_k_index.numel()
    if isinstance(choices, int) and choices < module.num_experts:  # a symbol if the number of tokens is open
        return gather_experts(module, hidden_states, top_k_index, top_k_weights)
    return _run_all(module, hidden_states, top_k_index, top_k_weights)


def _run_packed(module: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    chosen = top_k_index.reshape(-1)
    x = hidden_states.unsqueeze(1).expand(-1, top_k_index.shape[1], -1).reshape(chosen.shape[0], -1)
    inner = getattr(module, _first(module))(x, chosen)
    out = _normed(module, module.down_proj(_activated(module, inner), chosen))
    total: Tensor = (out.view(*top_k_index.shape, -1) * top_k_weights.unsqueeze(-1)).sum(1)
    return total.to(hidden_states.dtype)


def _run_all(module: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    E = module.num_experts
    inner = _project(module, _first(module), hidden_states.expand(E, -1, -1))
    out = _normed(module, _project(module, "down_proj", _activated(module, inner)))  # [E, T, H]
    chosen = top_k_index.unsqueeze(-1) == torch.arange(E)  # [T, N, E]
    share = torch.where(chosen, top_k_weights.unsqueeze(-1), 0.0).sum(1)  # [T, E]
    total: Tensor = (out * share.T.unsqueeze(-1)).sum(0)
    return total.to(hidden_states.dtype)


def _first(module: Any) -> str:
    return "gate_up_proj" if module.has_gate else "up_proj"


def _activated(module: Any, inner: Tensor) -> Tensor:
    activated: Tensor = gated(module, inner) if module.has_gate else module.act_fn(inner)
    return activated


def _normed(module: Any, out: Tensor) -> Tensor:
    normed: Tensor = module.post_expert_norm(out) if module.has_post_expert_norm else out
    return normed


def _project(module: Any, name: str, x: Tensor) -> Tensor:
    """Map x [E, T, in] through the experts' weights of that name, as they are stored, to [E, T, out]."""
    weight = getattr(module, name)
    out: Tensor = x @ weight if module.is_transposed else (weight @ x.transpose(1, 2)).transpose(1, 2)
    return out + getattr(module, f"{name}_bias").unsqueeze(1) if module.has_bias else out


# Find weights whose numbers already lie on a grid of few bits, because someone quantized them. A group of columns lies
# on a grid if one scale makes all of its numbers small integers. The scale is searched in the numbers themselves, so it
# is found after any permutation, fusion or renaming that kept the groups together.

LARGEST = {4: (-8, *range(7, 0, -1)), 8: (127, *range(15, 0, -1))}
"""Integers that the largest absolute value may be on a grid, by bits.

-8 is GGUF's Q4_0 (with a scale of either sign) and most other int4; 127 is Q8_0; 15 and below are 4 bits with zero
points and MXFP4 in 8 bits.
"""


def grid_scales(weight: Tensor, group: int, bits: int, dtype: torch.dtype, *, signed: bool = True) -> Tensor:
    """Return float32 scales [N, K / group] of a weight [N, K], 0 for groups that are on no grid of ``bits``.

    ``dtype`` holds each scale exactly, and scale times integer is the weight's number in float32.
    signed: allow negative scales.
    """
    groups: Tensor = weight.float().unflatten(1, (-1, group))
    scales = groups.new_zeros(groups.shape[:2])
    scales[:, 0] = _fitting(groups[:, 0], bits, dtype, signed)
    rows = scales[:, 0].nonzero().flatten()  # the first group already excludes almost every other row
    rest = groups[rows, 1:]
    scales[rows, 1:] = _fitting(rest.flatten(0, 1), bits, dtype, signed).view(rest.shape[:2])
    return scales


def _fitting(groups: Tensor, bits: int, dtype: torch.dtype, signed: bool) -> Tensor:
    """Return scales [M] of groups [M, group], 0 if none fits; any scale fits a group of zeros."""
    at = groups.abs().argmax(1, keepdim=True)
    largest = groups.gather(1, at).squeeze(1)
    scales = (largest == 0).float()
    left = largest.nonzero().flatten()
    for whole in LARGEST[bits]:
        if not len(left):
            break
        top = largest[left] if whole < 0 else largest[left].abs()
        scale = (top / whole).to(dtype).float()
        fits = _is_on_grid(groups[left], scale.unsqueeze(1), highest=abs(whole) - (whole < 0))
        fits &= (scale > 0) | signed
        scales[left[fits]] = scale[fits]
        left = left[~fits]
    return scales


def _is_on_grid(groups: Tensor, scale: Tensor, highest: int) -> Tensor:
    """Return whether each group [M, group] is its scale [M, 1] times integers, none above ``highest``."""
    whole = (groups / scale).round()
    return ((whole * scale == groups) & (whole <= highest)).all(1)


register_experts(EXPERTS, run_experts)
