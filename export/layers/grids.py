"""Weights whose numbers already lie on a grid of few bits, because someone quantized them: found, so that no bit is lost.

A group of columns lies on a grid where one scale makes all of its numbers small whole ones. The scale is not asked of whoever
quantized it: it is looked for in the numbers, after any permutation, fusion or renaming that kept the groups together.
"""

from __future__ import annotations

import torch
from torch import Tensor

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
