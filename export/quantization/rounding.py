"""Round a float weight to whole numbers with scales."""

from __future__ import annotations

import torch
from torch import Tensor

from hybridge.export.layers.packed_layers import float_rows
from hybridge.export.layers.rounded_weight import Grid, RoundedWeight
from hybridge.export.pinned.torchao import quantize, symmetric_scales

SMALLEST_SCALE = 2.0**-24
"""Of float16 numbers above 0."""


def round_to_nearest(name: str, weight: Tensor, grid: Grid) -> RoundedWeight:
    """Round each number of a weight [N, K] to the nearest multiple of its group's scale, by which the largest just fits.

    This is torchao's recipe for symmetric weights.
    """
    parts = [_nearest(rows, grid) for rows in float_rows(weight)]
    quanta, scales = (torch.cat(each) for each in zip(*parts, strict=True))
    return RoundedWeight(quanta=quanta, scales=scales, bits=grid.bits)


def _nearest(weight: Tensor, grid: Grid) -> tuple[Tensor, Tensor]:
    scales = symmetric_scales(weight, grid.group, grid.low, grid.high).to(grid.scale).clamp(min=SMALLEST_SCALE).float()
    return quantize(weight, scales, grid.group, grid.low, grid.high), scales.view(weight.shape[0], -1)
