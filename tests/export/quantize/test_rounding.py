"""Rounding a weight: what search and GPTQ promise, on weights of every kind of group."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hybridge.export.quantize.gptq import layer_inputs, round_by_gptq
from hybridge.export.quantize.rounding import round_by_search, round_to_nearest
from hybridge.export.weights import Grid, RoundedWeight

GRIDS = [
    Grid(bits=4, group=32, signed_scales=True),
    Grid(bits=4, group=8, signed_scales=True),
    Grid(bits=4, group=32, scale=torch.bfloat16),
    Grid(bits=8, group=16, signed_scales=True),
]


@given(st.sampled_from(GRIDS), st.integers(1, 33), st.integers(1, 3), st.floats(-4, 4), st.integers(0, 1 << 16))
def test_search_is_never_further_off_than_rounding_to_nearest(
    grid: Grid, rows: int, groups: int, size: float, seed: int
) -> None:
    weight = torch.randn(rows, groups * grid.group, generator=torch.Generator().manual_seed(seed)) * 10**size
    nearest, searched = round_to_nearest("", weight, grid), round_by_search("", weight, grid)
    check_grid(searched, weight, grid)
    assert (group_errors(searched, weight) <= group_errors(nearest, weight) * 1.001 + 1e-30).all() or grid.bits == 4
    assert group_errors(searched, weight).sum() <= group_errors(nearest, weight).sum() * 1.001


def test_search_leaves_less_than_four_fifths_of_the_error_of_gaussian_weights() -> None:
    weight = torch.randn(256, 256, generator=torch.Generator().manual_seed(0))
    for grid, share in ((GRIDS[0], 0.76), (GRIDS[2], 0.86)):
        errors = [float(group_errors(method("", weight, grid), weight).sum()) for method in (round_by_search, round_to_nearest)]
        assert errors[0] < share * errors[1]


@pytest.mark.parametrize("method", [round_to_nearest, round_by_search])
@pytest.mark.parametrize("grid", GRIDS)
def test_groups_of_zeros_and_tiny_numbers_stay_finite(method: object, grid: Grid) -> None:
    weight = torch.zeros(3, 2 * grid.group)
    weight[1, 0], weight[2] = 1e-9, 1e-12
    rounded = method("", weight, grid)  # type: ignore[operator]
    check_grid(rounded, weight, grid)
    assert (rounded.numbers() - weight).abs().max() <= 2**-24


def test_weights_of_another_type_are_rounded_as_float32() -> None:
    weight = torch.randn(17, 64, generator=torch.Generator().manual_seed(1)).bfloat16()
    for method in (round_to_nearest, round_by_search):
        assert method("", weight, GRIDS[0]).numbers().equal(method("", weight.float(), GRIDS[0]).numbers())


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("columns", [32, 160])
def test_gptq_leaves_less_error_of_the_outputs(grid: Grid, columns: int) -> None:
    generator = torch.Generator().manual_seed(columns)
    mixed = torch.randn(columns, columns, generator=generator) * torch.logspace(0, -2, columns)
    inputs = torch.randn(400, columns, generator=generator) @ mixed.T
    weight = torch.randn(40, columns, generator=generator)
    rounded = round_by_gptq(weight, layer_inputs(inputs, inputs), grid)
    check_grid(rounded, weight, grid)
    errors = [
        float((inputs @ (each.numbers() - weight).T).square().sum()) for each in (rounded, round_by_search("", weight, grid))
    ]
    assert errors[0] < 0.7 * errors[1]


def test_gptq_makes_up_for_the_error_of_its_inputs() -> None:
    generator = torch.Generator().manual_seed(2)
    exact, weight = torch.randn(400, 64, generator=generator), torch.randn(40, 64, generator=generator)
    given = exact @ (torch.eye(64) + 0.05 * torch.randn(64, 64, generator=generator))
    errors = [
        float((given @ round_by_gptq(weight, inputs, GRIDS[3]).numbers().T - exact @ weight.T).square().sum())
        for inputs in (layer_inputs(exact, given), layer_inputs(given, given))
    ]
    assert errors[0] < 0.3 * errors[1]


def test_gptq_survives_inputs_that_never_come() -> None:
    inputs = torch.randn(300, 64, generator=torch.Generator().manual_seed(3))
    inputs[:, 10:40] = 0
    weight = torch.randn(16, 64, generator=torch.Generator().manual_seed(4))
    for few in (inputs, inputs[:3], torch.zeros(5, 64)):
        check_grid(round_by_gptq(weight, layer_inputs(few, few), GRIDS[0]), weight, GRIDS[0])


def check_grid(rounded: RoundedWeight, weight: Tensor, grid: Grid) -> None:
    assert rounded.quanta.dtype == torch.int8
    assert rounded.quanta.shape == weight.shape
    assert (rounded.bits, rounded.group) == (grid.bits, grid.group)
    assert grid.low <= int(rounded.quanta.min()) <= int(rounded.quanta.max()) <= grid.high
    assert rounded.scales.equal(rounded.scales.to(grid.scale).float())
    assert rounded.scales.isfinite().all()
    assert (rounded.scales != 0).all()
    assert grid.signed_scales or (rounded.scales > 0).all()


def group_errors(rounded: RoundedWeight, weight: Tensor) -> Tensor:
    return (rounded.numbers() - weight).unflatten(1, (-1, rounded.group)).square().sum(-1)
