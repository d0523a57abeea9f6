"""Choose the scales of a rounded weight by the error that is left, which needs no data.

Rounding to nearest fits a group's largest number and leaves the others what steps that gives. A smaller or larger scale may be
nearer to all of them. Each of a few is tried, then moved twice to where it is best for the whole numbers that it gave, in a
closed form: the alternation of HQQ (Badri and Shaji 2023) and of llama.cpp's ``make_qx_quants`` (ggml-quants.c).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from hybridge.export.layers.packed_layers import float_rows
from hybridge.export.layers.rounded_weight import Grid, RoundedWeight
from hybridge.export.operators.panels import Factors
from hybridge.export.quantization.rounding import SMALLEST_SCALE, keeping_grids, round_to_nearest

FITS: Mapping[bool, tuple[float, ...]] = {True: (-7.4, -8.0, -9.0), False: (6.9, 7.5, 8.2)}
"""What a group's largest number becomes at first, by whether a scale may be negative; for 4 bits."""

MOVES = 2
"""Times that a scale is moved: a third makes the error 0.3 % less."""


@keeping_grids
def round_by_search(name: str, weight: Tensor, grid: Grid) -> RoundedWeight:
    """Round a weight [N, K] so that the squared error of each group is small; in 8 bits to nearest, which is as good."""
    if grid.bits != 4:
        return round_to_nearest(name, weight, grid)
    parts = []
    for rows in float_rows(weight):
        groups = rows.unflatten(1, (-1, grid.group))
        scales = best_scales(groups, grid)
        parts.append((whole_numbers(groups, scales, grid).flatten(1).to(torch.int8), scales[..., 0]))
    quanta, scales = (torch.cat(each) for each in zip(*parts, strict=True))
    return RoundedWeight(quanta=quanta, factors=Factors(scales), bits=grid.bits)


def best_scales(groups: Tensor, grid: Grid, importance: Tensor | float = 1.0) -> Tensor:
    """Return the scales [..., 1] of groups [..., G] for 4 bits with the least squared error found, as the grid can hold them.

    importance [..., G] weighs the squared error of each number.
    """
    largest = groups.gather(-1, groups.abs().argmax(-1, keepdim=True))
    if not grid.signed_scales:
        largest = largest.abs()
    best, least = torch.ones_like(largest), torch.full_like(largest, torch.inf)
    for fit in FITS[grid.signed_scales]:
        scales = _held(largest / fit, grid)
        for move in range(MOVES + 1):
            whole = whole_numbers(groups, scales, grid)
            error = ((groups - whole * scales).square() * importance).sum(-1, keepdim=True)
            best, least = torch.where(error < least, scales, best), torch.minimum(error, least)
            if move < MOVES:
                weighted = whole * importance
                square = (weighted * whole).sum(-1, keepdim=True)
                scales = torch.where(square > 0, _held((weighted * groups).sum(-1, keepdim=True) / square, grid), scales)
    return best


def whole_numbers(groups: Tensor, scales: Tensor, grid: Grid) -> Tensor:
    """Return float whole numbers of groups [..., G] over scales [..., 1], half to even."""
    return (groups / scales).round().clamp(grid.low, grid.high)


def _held(scales: Tensor, grid: Grid) -> Tensor:
    """Return scales as the grid's type holds them, none 0."""
    held = scales.to(grid.scale).float()
    return torch.where(held.abs() < SMALLEST_SCALE, SMALLEST_SCALE, held)
