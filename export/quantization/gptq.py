"""GPTQ (Frantar, Ashkboos, Hoefler and Alistarh 2022, arXiv:2210.17323): the columns that are left make up for rounded ones.

The error that counts is that of a layer's output over what it is given: tr(E H Eᵀ) for an error E of the weight [N, K] and the
second moment H = XᵀX of the inputs X [T, K]. Once column j is rounded, the best change of the columns behind it is known in
closed form from the upper Cholesky factor U of H⁻¹: -(error of column j / U[j, j]) · U[j, j + 1:].

Two things more lower the error by a third. Inputs X of rounded layers differ from the exact model's X̂, so the weight is first
moved to where its outputs over X are nearest to the exact ones, W (X̂ᵀX + λ) (XᵀX + λ)⁻¹, as in GPTAQ (Li et al. 2025,
arXiv:2504.02692). And once all whole numbers are chosen, the scales of each row are solved for together, by least squares.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hybridge.export.layers.packed_layers import one_thread
from hybridge.export.layers.rounded_weight import Grid, RoundedWeight
from hybridge.export.operators.panels import Factors
from hybridge.export.quantization.asymmetric import factors_of, joined, line_numbers, line_of
from hybridge.export.quantization.scale_search import best_scales, whole_numbers

DAMPING, RIDGE = 0.01, 0.03
"""Of the mean of H's diagonal, added to it: an input that calibration has not seen may come. RIDGE is λ."""

COLUMNS, ROWS = 128, 1024
"""Columns whose errors are passed on at once, and rows that are rounded at once."""

LARGEST_MOVE = 2.0
"""Times that a scale may become larger or smaller once the whole numbers are chosen."""


@dataclass(frozen=True, kw_only=True)
class LayerInputs:
    """What rounding must know of a layer's inputs, all [K, K] float32.

    moment: H, damped; factor: U; transfer: what moves a weight to where it makes up for the error of its inputs.
    """

    moment: Tensor
    factor: Tensor
    transfer: Tensor


def layer_inputs(exact: Tensor, given: Tensor) -> LayerInputs:
    """Describe the inputs that a layer is ``given`` [..., K] by rounded layers, where the exact model has ``exact``."""
    x, y = (each.detach().flatten(0, -2).float() for each in (given, exact))
    moment, cross = ((each.T @ x).double() / len(x) for each in (x, y))
    assert bool(moment.isfinite().all()), "the inputs of a layer are not finite"
    one = torch.eye(len(moment), dtype=moment.dtype) * moment.diagonal().mean().clamp(min=torch.finfo(torch.float32).tiny)
    transfer = torch.linalg.solve(moment + RIDGE * one, (cross + RIDGE * one).T).T
    return LayerInputs(moment=(moment + DAMPING * one).float(), factor=inverse_factor(moment, one), transfer=transfer.float())


def inverse_factor(moment: Tensor, one: Tensor) -> Tensor:
    """Return the float32 U [K, K] of a second moment H, H⁻¹ = Uᵀ U, to which so much of ``one`` is added as it takes."""
    damping = DAMPING
    while True:
        factor, failed = torch.linalg.cholesky_ex(moment + damping * one)
        if not failed:
            upper, failed = torch.linalg.cholesky_ex(torch.cholesky_inverse(factor), upper=True)
            if not failed:
                found: Tensor = upper.float()
                return found
        damping *= 10


def round_by_gptq(weight: Tensor, inputs: LayerInputs, grid: Grid) -> RoundedWeight:
    """Round a weight [N, K] for the inputs of its layer."""
    if grid.minima:
        return _round_in_superblocks(weight, inputs, grid)
    parts = []
    with one_thread():
        for rows in weight.split(ROWS):
            target = rows.detach().float() @ inputs.transfer
            quanta, scales = _round(target.clone(), inputs.factor, grid)
            parts.append((quanta.to(torch.int8), _refitted(target, quanta, scales, inputs.moment, grid)))
    quanta, scales = (torch.cat(each) for each in zip(*parts, strict=True))
    return RoundedWeight(quanta=quanta, factors=Factors(scales), bits=grid.bits)


def _round_in_superblocks(weight: Tensor, inputs: LayerInputs, grid: Grid) -> RoundedWeight:
    """Round to groups with minima, whose factors are chosen for all groups before the first column: they share superblocks."""
    diagonal, parts = inputs.factor.diagonal(), []
    with one_thread():
        for rows in weight.split(ROWS):
            left = rows.detach().float() @ inputs.transfer
            factors = factors_of(left, grid, diagonal.square().reciprocal())
            scales, minima = (each.squeeze(-1).repeat_interleave(grid.group, dim=1) for each in line_of(factors))
            quanta = torch.empty_like(left)
            for start in range(0, left.shape[1], COLUMNS):
                end, errors = min(start + COLUMNS, left.shape[1]), []
                for j in range(start, end):
                    quanta[:, j] = line_numbers(left[:, j], scales[:, j], minima[:, j], grid.bits)
                    errors.append((left[:, j] - quanta[:, j] * scales[:, j] - minima[:, j]) / diagonal[j])
                    left[:, j + 1 : end] -= errors[-1][:, None] * inputs.factor[j, j + 1 : end]
                left[:, end:] -= torch.stack(errors, 1) @ inputs.factor[start:end, end:]
            parts.append(
                RoundedWeight(quanta=(quanta - (1 << (grid.bits - 1))).to(torch.int8), factors=factors, bits=grid.bits)
            )
    return joined(parts)


def _refitted(target: Tensor, quanta: Tensor, scales: Tensor, moment: Tensor, grid: Grid) -> Tensor:
    """Return the scales [N, K / G] of whole numbers [N, K] that are nearest to ``target`` over inputs with ``moment``."""
    groups = quanta.unflatten(1, (-1, grid.group))
    wanted = (target @ moment).unflatten(1, (-1, grid.group)).mul(groups).sum(-1)
    products = [
        (groups[:, g] @ moment[g * grid.group : (g + 1) * grid.group]).unflatten(1, (-1, grid.group)).mul(groups).sum(-1)
        for g in range(groups.shape[1])
    ]
    system = torch.stack(products, 1)  # [N, K / G, K / G]
    size = system.diagonal(dim1=1, dim2=2).mean(-1).clamp(min=torch.finfo(torch.float32).tiny)
    system += 1e-6 * size[:, None, None] * torch.eye(groups.shape[1])
    solved = torch.linalg.solve(system, wanted).to(grid.scale).float()
    ratio = solved / scales
    return torch.where((ratio > 1 / LARGEST_MOVE) & (ratio < LARGEST_MOVE), solved, scales)


def _round(weight: Tensor, factor: Tensor, grid: Grid) -> tuple[Tensor, Tensor]:
    """Round rows [N, K], which change; whole numbers [N, K] and scales [N, K / group]."""
    N, K = weight.shape
    quanta, scales = torch.empty_like(weight), weight.new_empty(N, K // grid.group)
    block = max(grid.group, COLUMNS // grid.group * grid.group)
    for start in range(0, K, block):
        end = min(start + block, K)
        errors = weight.new_empty(N, end - start)
        for j in range(start, end):
            if j % grid.group == 0:
                step = _scale(weight[:, j : j + grid.group], factor.diagonal()[j : j + grid.group], grid)
                scales[:, j // grid.group] = step
            quanta[:, j] = whole_numbers(weight[:, j], step, grid)
            error = (weight[:, j] - quanta[:, j] * step) / factor[j, j]
            weight[:, j + 1 : end] -= error[:, None] * factor[j, j + 1 : end]
            errors[:, j - start] = error
        weight[:, end:] -= errors @ factor[start:end, end:]
    return quanta, scales


def _scale(group: Tensor, factor: Tensor, grid: Grid) -> Tensor:
    """Return scales [N] of a group of columns [N, G]; 1 / U[j, j]² is what an error of column j costs in the end."""
    if grid.bits == 8:
        return (group.abs().amax(1) / grid.high).to(grid.scale).float().clamp(min=torch.finfo(grid.scale).smallest_normal)
    return best_scales(group, grid, factor.square().reciprocal())[:, 0]
