"""A weight as whole numbers and their factors: what rounding makes, and what layers of fewer bits are made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hybridge.export.operators.panels import Factors, numbers


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
