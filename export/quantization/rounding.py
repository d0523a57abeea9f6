"""Round a float weight to whole numbers with scales."""

from __future__ import annotations

import functools
from dataclasses import replace

import torch
from torch import Tensor

from hybridge.export.layers.grids import grid_scales
from hybridge.export.layers.packed_layers import float_rows
from hybridge.export.layers.rounded_weight import Grid, RoundedWeight, Rounder
from hybridge.export.operators.panels import Factors
from hybridge.export.pinned.torchao import quantize, symmetric_scales

SMALLEST_SCALE = 2.0**-24
"""Of float16 numbers above 0."""


def keeping_grids(rounder: Rounder) -> Rounder:
    """Return ``rounder``, but groups that somebody has quantized to as few bits before keep their numbers exactly.

    With minima, which share superblocks, a weight keeps them as a whole, see ``fitting_grid``.
    """

    @functools.wraps(rounder)
    def kept(name: str, weight: Tensor, grid: Grid) -> RoundedWeight:
        grid = fitting_grid(weight, grid)
        rounded = rounder(name, weight, grid)
        if grid.minima:
            return rounded
        parts = [_on_grids(rows, grid) for rows in float_rows(weight)]
        if not any(scales.any() for _, scales in parts):
            return rounded
        quanta, scales = (torch.cat(each) for each in zip(*parts, strict=True))
        on_grid = scales != 0
        spread = on_grid.repeat_interleave(grid.group, dim=1)
        return replace(
            rounded,
            quanta=torch.where(spread, quanta, rounded.quanta),
            factors=Factors(torch.where(on_grid, scales, rounded.scales)),
        )

    return kept


def fitting_grid(weight: Tensor, grid: Grid) -> Grid:
    """Return ``grid``, or in place of one with minima that of 4 bits without, where somebody has quantized ``weight`` to it.

    That is so where most of the groups of ``weight`` [N, K] are on it; some may be there for being all zeros.
    """
    if not grid.minima:
        return grid
    symmetric = replace(grid, bits=4, minima=False)
    found = [(_on_grids(rows, symmetric)[1] != 0).float().mean(1) for rows in float_rows(weight)]
    return symmetric if float(torch.cat(found).mean()) > 0.5 else grid


def _on_grids(weight: Tensor, grid: Grid) -> tuple[Tensor, Tensor]:
    """Whole numbers int8 [N, K] and scales [N, K / group], which are 0 for groups that are on no grid."""
    scales = grid_scales(weight, grid.group, grid.bits, grid.scale, signed=grid.signed_scales)
    steps = torch.where(scales == 0, torch.inf, scales).unsqueeze(-1)
    return (weight.unflatten(1, (-1, grid.group)) / steps).round().flatten(1).to(torch.int8), scales


@keeping_grids
def round_to_nearest(name: str, weight: Tensor, grid: Grid) -> RoundedWeight:
    """Round each number of a weight [N, K] to the nearest multiple of its group's scale, by which the largest just fits.

    This is torchao's recipe for symmetric weights.
    """
    parts = [_nearest(rows, grid) for rows in float_rows(weight)]
    quanta, scales = (torch.cat(each) for each in zip(*parts, strict=True))
    return RoundedWeight(quanta=quanta, factors=Factors(scales), bits=grid.bits)


def _nearest(weight: Tensor, grid: Grid) -> tuple[Tensor, Tensor]:
    scales = symmetric_scales(weight, grid.group, grid.low, grid.high).to(grid.scale).clamp(min=SMALLEST_SCALE).float()
    return quantize(weight, scales, grid.group, grid.low, grid.high), scales.view(weight.shape[0], -1)
