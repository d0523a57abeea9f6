"""A weight as whole numbers and their factors: what rounding makes, and what layers of fewer bits are made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hybridge.export.operators.linear import Factors, numbers


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Whole numbers of ``bits``, with one scale for ``group`` columns, which the type ``scale`` holds exactly.

    minima: whether each group has a minimum too, and both are whole numbers in superblocks, as ``asymmetric`` rounds them;
    without, there are 4 or 8 bits. signed_scales: whether kernels take scales below 0 too, which let -8, that has no positive
    twin, stand for either sign.
    """

    bits: int
    group: int
    scale: torch.dtype = torch.float16
    signed_scales: bool = False
    minima: bool = False

    @property
    def high(self) -> int:
        """The highest whole number."""
        return (1 << (self.bits - 1)) - 1

    @property
    def low(self) -> int:
        """The lowest: -128 has no positive twin, which some processors' products need."""
        return -8 if self.bits == 4 else -self.high


@dataclass(frozen=True, kw_only=True)
class RoundedWeight:
    """A weight [N, K] as int8 ``quanta`` [N, K] of ``bits`` bits, which ``factors`` by rows make numbers of.

    Or as floats ``quanta`` of 16 or 32 bits, without factors. note: why it was rounded where it should have kept its bits.
    """

    quanta: Tensor
    factors: Factors
    bits: int
    note: str = ""

    def mapped(self, change: Callable[[Tensor], Tensor]) -> RoundedWeight:
        """Return this with ``change`` made of each tensor that has a row for each row of the weight."""
        return replace(self, quanta=change(self.quanta), factors=self.factors.mapped(change))

    @property
    def scales(self) -> Tensor:
        """Return the scales [N, K / group] of a weight that has nothing but those."""
        assert self.factors.scales is not None
        assert self.factors.is_plain
        return self.factors.scales

    @property
    def group(self) -> int:
        """Return how many columns share a scale."""
        assert self.factors.scales is not None
        return self.quanta.shape[1] // self.factors.scales.shape[1]

    def numbers(self) -> Tensor:
        """Return the float32 weight [N, K] that this stands for."""
        return numbers(self.quanta, self.bits, self.factors)


Rounder = Callable[[str, Tensor, Grid], RoundedWeight]
"""Rounds the float weight [N, K] of a name to a grid; a rounder may know more of what a name's layer is given."""


# Weights whose numbers already lie on a grid of few bits, because someone quantized them: found, so that no bit is
# lost.
#
# A group of columns lies on a grid where one scale makes all of its numbers small whole ones. The scale is not
# asked of whoever
# quantized it: it is looked for in the numbers, after any permutation, fusion or renaming that kept the groups
# together.


LARGEST = {4: (-8, *range(7, 0, -1)), 8: (127, *range(15, 0, -1))}
"""What the number of the largest absolute value may be on a grid, by bits.

-8 is GGUF's Q4_0 (under a scale of either sign) and most others' int4; 127 is Q8_0; 15 and below fit 4 bits with zero points
and MXFP4 into 8 bits.
"""


def grid_scales(weight: Tensor, group: int, bits: int, dtype: torch.dtype, *, signed: bool = True) -> Tensor:
    """Return float32 scales [N, K / group] of a weight [N, K]: 0 for groups that are on no grid of ``bits``.

    ``dtype`` holds each scale exactly, and scale times whole number is the weight's own number in float32. signed: scales may
    be negative.
    """
    groups: Tensor = weight.float().unflatten(1, (-1, group))
    scales = groups.new_zeros(groups.shape[:2])
    scales[:, 0] = _fitting(groups[:, 0], bits, dtype, signed)
    rows = scales[:, 0].nonzero().flatten()  # one group says of almost every other row that it is on no grid
    rest = groups[rows, 1:]
    scales[rows, 1:] = _fitting(rest.flatten(0, 1), bits, dtype, signed).view(rest.shape[:2])
    return scales


def _fitting(groups: Tensor, bits: int, dtype: torch.dtype, signed: bool) -> Tensor:
    """Scales [M] of groups [M, group], 0 where none fits; any is one for a group of zeros."""
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
    """Whether each group [M, group] is its scale [M, 1] times whole numbers, none above ``highest``."""
    whole = (groups / scale).round()
    return ((whole * scale == groups) & (whole <= highest)).all(1)
