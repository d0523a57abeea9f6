"""Round a float weight to whole numbers with scales, or keep the whole numbers that its file has.

The rounders here need no data; ``gptq.py`` has the one that does.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter

import torch
from torch import Tensor, nn

from hybridge.export.operators.linear import Factors
from hybridge.export.operators.parts import CHUNK, by_rows
from hybridge.export.pinned.torchao import quantize, symmetric_scales
from hybridge.export.pinned.transformers import origin_of
from hybridge.export.quantize.bits import GROUPS
from hybridge.export.weights import Grid, RoundedWeight, Rounder, WithoutWeight, grid_scales
from hybridge.runtime.binding.library import run

SMALLEST_SCALE = 2.0**-24
"""The smallest float16 number above 0."""


def keeping_grids(rounder: Rounder) -> Rounder:
    """Let ``rounder`` keep the exact numbers of groups that were quantized to as few bits before.

    With minima, whose groups share superblocks, this holds for a whole weight; see ``fitting_grid``.
    """

    @functools.wraps(rounder)
    def kept(name: str, weight: Tensor, grid: Grid) -> RoundedWeight:
        grid = fitting_grid(weight, grid)
        rounded = rounder(name, weight, grid)
        if grid.minima:
            return rounded
        parts = by_rows(weight, lambda rows: _on_grids(rows.float(), grid))
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
    """Return ``grid``, or 4 bits without minima in place of a grid with minima, if ``weight`` [N, K] was quantized to that.

    It was if most of its groups are on that grid; a few may be on it because they are all zeros.
    """
    if not grid.minima:
        return grid
    symmetric = replace(grid, bits=4, minima=False)
    found = by_rows(weight, lambda rows: (_grid_scales(rows.float(), symmetric) != 0).float().mean(1))
    return symmetric if float(torch.cat(found).mean()) > 0.5 else grid


def _grid_scales(weight: Tensor, grid: Grid) -> Tensor:
    """Return scales [N, K / group], 0 for groups that are on no grid."""
    return grid_scales(weight, grid.group, grid.bits, grid.scale, signed=grid.signed_scales)


def _on_grids(weight: Tensor, grid: Grid) -> tuple[Tensor, Tensor]:
    """Return whole numbers int8 [N, K] and scales [N, K / group], 0 for groups that are on no grid."""
    scales = _grid_scales(weight, grid)
    steps = torch.where(scales == 0, torch.inf, scales).unsqueeze(-1)
    return (weight.unflatten(1, (-1, grid.group)) / steps).round().flatten(1).to(torch.int8), scales


@keeping_grids
def round_to_nearest(name: str, weight: Tensor, grid: Grid) -> RoundedWeight:
    """Round each number of a weight [N, K] to the nearest multiple of its group's scale, which just fits the largest.

    This is torchao's recipe for symmetric weights.
    """

    def rounded(rows: Tensor) -> RoundedWeight:
        rows = rows.float()
        scales = symmetric_scales(rows, grid.group, grid.low, grid.high).to(grid.scale).clamp(min=SMALLEST_SCALE).float()
        quanta = quantize(rows, scales, grid.group, grid.low, grid.high)
        return RoundedWeight(quanta=quanta, factors=Factors(scales.view(len(rows), -1)), bits=grid.bits)

    return joined(by_rows(weight, rounded))


def joined(parts: Sequence[RoundedWeight]) -> RoundedWeight:
    """Join rows of a weight, which were rounded a part at a time."""
    columns = zip(*(part.factors for part in parts), strict=True)
    factors = Factors(*(None if column[0] is None else torch.cat(column) for column in columns))
    return RoundedWeight(quanta=torch.cat([part.quanta for part in parts]), factors=factors, bits=parts[0].bits)


# Choose scales by the remaining error. Rounding to nearest fits a group's largest number, but a smaller or larger scale
# may be nearer to all of its numbers. A few scales are tried, and each is moved twice to the best one for the whole
# numbers that it gave, in closed form: the alternation of HQQ (Badri and Shaji 2023) and of llama.cpp's
# ``make_qx_quants`` (ggml-quants.c).


FITS: Mapping[bool, tuple[float, ...]] = {True: (-7.4, -8.0, -9.0), False: (6.9, 7.5, 8.2)}
"""First values of a group's largest number in 4 bits, by whether scales may be negative."""

MOVES = 2
"""Number of times that a scale is moved; a third would lower the error by 0.3 %."""


@keeping_grids
def round_by_search(name: str, weight: Tensor, grid: Grid) -> RoundedWeight:
    """Round a weight [N, K] so that the squared error of each group is small; to nearest in 8 bits, which is as good."""
    if grid.bits != 4:
        return round_to_nearest(name, weight, grid)

    def rounded(rows: Tensor) -> RoundedWeight:
        groups = rows.float().unflatten(1, (-1, grid.group))
        scales = best_scales(groups, grid)
        quanta = whole_numbers(groups, scales, grid).flatten(1).to(torch.int8)
        return RoundedWeight(quanta=quanta, factors=Factors(scales[..., 0]), bits=grid.bits)

    return joined(by_rows(weight, rounded))


def best_scales(groups: Tensor, grid: Grid, importance: Tensor | float = 1.0) -> Tensor:
    """Return the scales [..., 1] of groups [..., G] with the least squared error found for 4 bits, in the grid's type.

    importance: weights [..., G] of the squared error of each number.
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
    """Return scales rounded to the grid's type, none of them 0."""
    held = scales.to(grid.scale).float()
    return torch.where(held.abs() < SMALLEST_SCALE, SMALLEST_SCALE, held)


# Groups with a scale and a minimum, in superblocks: the form of llama.cpp's K-quants. A weight is u * scale + minimum
# with u of 0..2^bits - 1. Scales and minima are whole numbers of 8 bits, and a superblock has a float16 factor for
# either. Per group several steps are tried, and for the whole numbers of each the scale and the minimum with the least
# weighted squared error are known in closed form (``make_qkx2_quants`` in ggml-quants.c): by the core, in
# ``runtime/native/c_api/rounding.cpp``, because operators of PyTorch took ten times as long and kept other threads waiting.


HIGHEST = 127
"""Largest whole number of a scale or a minimum in a superblock."""

LARGEST_SUPERBLOCK = 16
"""Most groups of a superblock; more would take fewer bytes, with a larger error."""


def superblock_of(groups: int) -> int:
    """Return the number of a row's groups in a superblock: the largest divisor up to LARGEST_SUPERBLOCK."""
    return next(size for size in range(min(groups, LARGEST_SUPERBLOCK), 0, -1) if groups % size == 0)


def round_in_superblocks(weight: Tensor, grid: Grid) -> RoundedWeight:
    """Round a weight [N, K] without data."""

    def rounded(rows: Tensor) -> RoundedWeight:
        rows = rows.float()
        factors = factors_of(rows, grid)
        groups = rows.unflatten(1, (-1, grid.group))
        quanta = line_numbers(groups, *line_of(factors), grid.bits).flatten(1) - (1 << (grid.bits - 1))
        return RoundedWeight(quanta=quanta.to(torch.int8), factors=factors, bits=grid.bits)

    return joined(by_rows(weight, rounded))


def factors_of(weight: Tensor, grid: Grid, importance: Tensor | None = None) -> Factors:
    """Choose the factors of a weight [N, K].

    importance: weights [K] of the squared error of each column; without it large numbers count more, as in llama.cpp.
    """
    groups = weight.unflatten(1, (-1, grid.group))
    if importance is None:
        weighed = groups.square().mean(-1, keepdim=True).sqrt() + groups.abs()
    else:
        weighed = (importance / importance.mean()).clamp(min=1e-6).unflatten(0, (-1, grid.group)).expand_as(groups)
    return in_superblocks(*best_line(groups, weighed, grid.bits))


def best_line(groups: Tensor, weighed: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Return the scales and minima [..., 1] of groups [..., G] with the least squared error found, weighted by ``weighed``."""
    groups, weighed = groups.contiguous(), weighed.contiguous()
    scales, minima = (groups.new_empty(*groups.shape[:-1], 1) for _ in range(2))
    values, weights = groups.data_ptr(), weighed.data_ptr()
    run("fit_lines", values, weights, scales.numel(), groups.shape[-1], bits, scales.data_ptr(), minima.data_ptr())
    return scales, minima


def in_superblocks(scales: Tensor, minima: Tensor) -> Factors:
    """Quantize scales and minima [N, G, 1] to whole numbers with float16 factors."""
    size = superblock_of(scales.shape[1])
    pairs, wholes = [], []
    for values in (scales, minima):
        blocks = values.squeeze(-1).unflatten(1, (-1, size))
        step = (blocks.abs().amax(-1, keepdim=True) / HIGHEST).half()
        step = torch.where(step == 0, torch.finfo(torch.float16).smallest_normal, step)
        wholes.append((blocks / step.float()).round().clamp(-HIGHEST, HIGHEST).flatten(1).to(torch.int8))
        pairs.append(step)
    wholes[0] = wholes[0].clamp(min=1)  # a group of equal numbers has no step, but is divided by one
    return Factors(wholes[0], wholes[1], torch.cat(pairs, dim=-1).flatten(1))


def line_of(factors: Factors) -> tuple[Tensor, Tensor]:
    """Return the scales and minima [N, G, 1] of factors in superblocks."""
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
    """Return float whole numbers 0..2^bits - 1 for groups with these scales and minima."""
    return ((groups - minima) / scales).round().clamp(0, (1 << bits) - 1)


@keeping_grids
def round_in_blocks(name: str, weight: Tensor, grid: Grid) -> RoundedWeight:
    """Round a weight [N, K] to superblocks if its grid has minima, else by search."""
    return round_in_superblocks(weight, grid) if grid.minima else round_by_search(name, weight, grid)


# Keep the blocks of a GGUF file, bit for bit


def keep_blocks(name: str, weight: Tensor, grid: Grid) -> RoundedWeight:
    """Keep a weight [N, K] in the blocks of its GGUF file; round it to 8 bits if that cannot be, with a note of the reason.

    The blocks must stand for the very numbers of ``weight``, because an adapter may have changed those.
    """
    origin = origin_of(weight)
    if origin is None:
        return _rounded_to_8(name, weight, "no tensors of the file stand for it alone")
    stored: RoundedWeight | None = origin.blocks()
    if stored is None:
        kinds = " and ".join(origin.without_kernels())
        reason = f"there are no kernels for {kinds}" if kinds else "its rows lie otherwise in the file"
        return _rounded_to_8(name, weight, reason)
    if not _stands_for(stored, weight):
        return _rounded_to_8(name, weight, "its numbers are no longer those of the file")
    if stored.bits == 8 and bool((stored.quanta == -128).any()):  # -128 has no positive counterpart, which products need
        return _exact(weight)
    return replace(stored, origin=origin)


def notes_of_rounding(model: nn.Module) -> Iterator[str]:
    """Yield a sentence for each reason why weights of ``model`` were rounded in spite of ``--quantize keep``."""
    names: dict[str, list[str]] = {}
    for name, module in model.named_modules():
        if isinstance(module, WithoutWeight) and module.note:
            names.setdefault(module.note, []).append(name)
    for note, found in names.items():
        more = f" and {len(found) - 1} other weights" if len(found) > 1 else ""
        yield f"--quantize keep rounds {found[0]}{more} to 8 bits: {note}."


def _stands_for(stored: RoundedWeight, weight: Tensor) -> bool:
    if stored.quanta.shape != weight.shape:
        return False
    step = max(1, CHUNK // weight.shape[1])
    spans = (slice(first, first + step) for first in range(0, len(weight), step))
    return all(stored.mapped(itemgetter(span)).numbers().equal(weight[span].float()) for span in spans)


def _rounded_to_8(name: str, weight: Tensor, note: str) -> RoundedWeight:
    group = next((each for each in GROUPS if weight.shape[1] % each == 0), None)
    if group is None:
        return _exact(weight)
    rounded = round_to_nearest(name, weight, Grid(bits=8, group=group, signed_scales=True))
    return RoundedWeight(quanta=rounded.quanta, factors=rounded.factors, bits=8, note=note)


def _exact(weight: Tensor) -> RoundedWeight:
    return RoundedWeight(quanta=weight.detach().float(), factors=Factors(), bits=32)
