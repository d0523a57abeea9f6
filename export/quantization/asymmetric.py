"""Round weights to groups that have a scale and a minimum, in superblocks: the form of llama.cpp's K-quants.

A weight is u * scale + minimum with u of 0..2^bits - 1. Scales and minima are whole numbers of 8 bits, and a superblock has a
float16 for all of either. Per group several steps are tried, and for the whole numbers of each the scale and the minimum with
the least weighted squared error are known in closed form (``make_qkx2_quants`` in ggml-quants.c).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hybridge.export.layers.packed_layers import float_rows
from hybridge.export.layers.rounded_weight import Grid, RoundedWeight
from hybridge.export.operators.panels import Factors
from hybridge.export.quantization.rounding import keeping_grids
from hybridge.export.quantization.scale_search import round_by_search

STRETCHES = (-0.6, -0.3, 0.0, 0.3, 0.6, 0.9, 1.2, 1.6)
"""By how much more steps than there are a group's span is divided; what lies outside is cut off."""

HIGHEST = 127
"""Of a scale or a minimum in a superblock."""

LARGEST_SUPERBLOCK = 16
"""Groups; more of them share a factor for fewer bytes and with a larger error."""


def superblock_of(groups: int) -> int:
    """Return how many of a row's groups share a superscale: as many as divide them, up to the most."""
    return next(size for size in range(min(groups, LARGEST_SUPERBLOCK), 0, -1) if groups % size == 0)


def round_in_superblocks(weight: Tensor, grid: Grid) -> RoundedWeight:
    """Round a weight [N, K] without data."""
    parts = []
    for rows in float_rows(weight):
        factors = factors_of(rows, grid)
        groups = rows.unflatten(1, (-1, grid.group))
        quanta = line_numbers(groups, *line_of(factors), grid.bits).flatten(1) - (1 << (grid.bits - 1))
        parts.append(RoundedWeight(quanta=quanta.to(torch.int8), factors=factors, bits=grid.bits))
    return joined(parts)


def joined(parts: Sequence[RoundedWeight]) -> RoundedWeight:
    """Return rows of a weight in superblocks, one below the other."""
    scales, minima, superscales = (torch.cat(list(each)) for each in zip(*(part.factors[:3] for part in parts), strict=True))
    quanta = torch.cat([part.quanta for part in parts])
    return RoundedWeight(quanta=quanta, factors=Factors(scales, minima, superscales), bits=parts[0].bits)


def factors_of(weight: Tensor, grid: Grid, importance: Tensor | None = None) -> Factors:
    """Choose the factors of a weight [N, K]; ``importance`` [K] weighs the squared error of each column, if it is known.

    Without it large numbers count more, as they do in llama.cpp.
    """
    groups = weight.unflatten(1, (-1, grid.group))
    if importance is None:
        weighed = groups.square().mean(-1, keepdim=True).sqrt() + groups.abs()
    else:
        weighed = (importance / importance.mean()).clamp(min=1e-6).unflatten(0, (-1, grid.group)).expand_as(groups)
    return in_superblocks(*best_line(groups, weighed, grid.bits))


def best_line(groups: Tensor, weighed: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Return the scales and minima [..., 1] of groups [..., G] with the least squared error found."""
    high = (1 << bits) - 1
    lowest, span = groups.amin(-1, keepdim=True), (groups.amax(-1, keepdim=True) - groups.amin(-1, keepdim=True))
    span = span.clamp(min=torch.finfo(torch.float32).tiny)
    total, first = weighed.sum(-1, keepdim=True), (weighed * groups).sum(-1, keepdim=True)
    best_scale, best_low, least = span / high, lowest, torch.full_like(lowest, torch.inf)
    for stretch in STRETCHES:
        whole = ((groups - lowest) * ((high + stretch) / span)).round().clamp(0, high)
        counted = weighed * whole
        sums, squares = counted.sum(-1, keepdim=True), (counted * whole).sum(-1, keepdim=True)
        crossed = (counted * groups).sum(-1, keepdim=True)
        determinant = total * squares - sums * sums
        sound = determinant > 1e-10 * total * squares
        scale = torch.where(sound, (total * crossed - first * sums) / determinant, span / high)
        low = torch.where(sound, (squares * first - sums * crossed) / determinant, lowest)
        error = ((whole * scale + low - groups).square() * weighed).sum(-1, keepdim=True)
        better = error < least
        best_scale, best_low, least = (
            torch.where(better, new, old) for new, old in ((scale, best_scale), (low, best_low), (error, least))
        )
    return best_scale, best_low


def in_superblocks(scales: Tensor, minima: Tensor) -> Factors:
    """Return scales and minima [N, G, 1] as the whole numbers and float16 factors that hold them best."""
    size = superblock_of(scales.shape[1])
    pairs, wholes = [], []
    for values in (scales, minima):
        blocks = values.squeeze(-1).unflatten(1, (-1, size))
        step = (blocks.abs().amax(-1, keepdim=True) / HIGHEST).half()
        step = torch.where(step == 0, torch.finfo(torch.float16).smallest_normal, step)
        wholes.append((blocks / step.float()).round().clamp(-HIGHEST, HIGHEST).flatten(1).to(torch.int8))
        pairs.append(step)
    wholes[0] = wholes[0].clamp(min=1)  # a group of one number has no step of its own, but must not be divided by none
    return Factors(wholes[0], wholes[1], torch.cat(pairs, dim=-1).flatten(1))


def line_of(factors: Factors) -> tuple[Tensor, Tensor]:
    """Return the scales and minima [N, G, 1] that factors in superblocks stand for."""
    assert factors.scales is not None
    assert factors.minima is not None
    assert factors.superscales is not None
    steps = factors.superscales.float().unflatten(1, (-1, 1, 2))
    scales, minima = (
        (whole.float().unflatten(1, (steps.shape[1], -1)) * steps[..., part]).flatten(1).unsqueeze(-1)
        for part, whole in enumerate((factors.scales, factors.minima))
    )
    return scales, minima


def line_numbers(groups: Tensor, scales: Tensor, minima: Tensor, bits: int) -> Tensor:
    """Return float whole numbers 0..2^bits - 1 of numbers on lines."""
    return ((groups - minima) / scales).round().clamp(0, (1 << bits) - 1)


@keeping_grids
def round_in_blocks(name: str, weight: Tensor, grid: Grid) -> RoundedWeight:
    """Round a weight [N, K] without data to what its grid asks for."""
    return round_in_superblocks(weight, grid) if grid.minima else round_by_search(name, weight, grid)
