"""A weight as whole numbers and scales: what rounding makes, and what layers of fewer bits are made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Whole numbers of ``bits`` (4 or 8), with one scale for ``group`` columns, which the type ``scale`` holds exactly.

    signed_scales: whether kernels take scales below 0 too, which let -8, that has no positive twin, stand for either sign.
    """

    bits: int
    group: int
    scale: torch.dtype = torch.float16
    signed_scales: bool = False

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
    """A weight [N, K]: int8 ``quanta`` [N, K] times float32 ``scales`` [N, K / group]."""

    quanta: Tensor
    scales: Tensor
    bits: int

    @property
    def group(self) -> int:
        """Return how many columns share a scale."""
        return self.quanta.shape[1] // self.scales.shape[1]

    def numbers(self) -> Tensor:
        """Return the float32 weight [N, K] that this stands for."""
        numbers: Tensor = (self.quanta.unflatten(1, (-1, self.group)) * self.scales.unsqueeze(-1)).flatten(1)
        return numbers


Rounder = Callable[[str, Tensor, Grid], RoundedWeight]
"""Rounds the float weight [N, K] of a name to a grid; a rounder may know more of what a name's layer is given."""
