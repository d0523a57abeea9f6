"""Rounding a weight: what search and GPTQ promise, on weights of every kind of group."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hybridge.errors import UsageError
from hybridge.export.operators.linear import weights
from hybridge.export.quantize.gptq import layer_inputs, round_by_gptq
from hybridge.export.quantize.rounding import (
    best_line,
    round_by_search,
    round_in_blocks,
    round_in_superblocks,
    round_to_nearest,
    superblock_of,
)
from hybridge.export.weights import Grid, PackedWeight, RoundedWeight, Rounder, grid_scales

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


# Weights that were quantized before


SEEDS = st.integers(0, 2**31)


def on_grid(seed: int, low: int, high: int, group: int, *, negative: bool = False) -> Tensor:
    """A random weight [19, 4 groups]: float16 scales times whole numbers."""
    generator = torch.Generator().manual_seed(seed)
    whole = torch.randint(low, high + 1, (19, 4, group), generator=generator).float()
    scales = (0.001 + torch.rand(19, 4, 1, generator=generator)).half().float()
    signs = torch.randint(0, 2, scales.shape, generator=generator) * 2.0 - 1 if negative else 1.0
    return (whole * scales * signs).flatten(1)


def kept(weight: Tensor, bits: int, group: int) -> Tensor:
    """The numbers that are left of a weight, by one way to round; the other must leave those on a grid too."""
    grid = Grid(bits=bits, group=group, signed_scales=True)
    nearest, searched = (PackedWeight.of(each("", weight, grid)) for each in (round_to_nearest, round_by_search))
    left = weights(nearest.packed, nearest.factors, weight.shape[0])
    on_grid = (left == weight).unflatten(1, (-1, group)).all(2)
    same = (weights(searched.packed, searched.factors, weight.shape[0]) == weight).unflatten(1, (-1, group)).all(2)
    assert bool((same | ~on_grid).all())
    return left


@given(SEEDS, st.sampled_from([8, 32, 64]))
def test_four_bits_of_either_sign_are_kept(seed: int, group: int) -> None:
    """Q4_0's scale has the sign that makes the largest number -8."""
    weight = on_grid(seed, -8, 7, group, negative=True)
    assert kept(weight, 4, group).equal(weight)


@given(SEEDS)
def test_larger_groups_are_kept_in_smaller_ones(seed: int) -> None:
    assert kept(on_grid(seed, -8, 7, 128), 4, 32).equal(on_grid(seed, -8, 7, 128))


@given(SEEDS)
def test_zero_points_fit_into_eight_bits(seed: int) -> None:
    weight = on_grid(seed, 0, 15, 32) - on_grid(seed, 3, 3, 32)
    assert kept(weight, 8, 32).equal(weight)


@given(SEEDS)
def test_mxfp4_fits_into_eight_bits(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])[torch.randint(0, 8, (19, 4, 32), generator=generator)]
    signs = torch.randint(0, 2, numbers.shape, generator=generator) * 2 - 1
    weight = (numbers * signs * 2.0 ** torch.randint(-9, 3, (19, 4, 1), generator=generator)).flatten(1)
    assert kept(weight, 8, 32).equal(weight)


@given(SEEDS)
def test_eight_bits_are_kept(seed: int) -> None:
    weight = on_grid(seed, -127, 127, 32).unflatten(1, (4, 32))
    weight[..., 5] = 127 * on_grid(seed, 1, 1, 32).unflatten(1, (4, 32))[..., 5]  # as Q8_0 has it: the largest is 127
    assert kept(weight.flatten(1), 8, 32).equal(weight.flatten(1))


@pytest.mark.parametrize("bits", [4, 8])
def test_a_weight_on_no_grid_is_rounded_as_ever(bits: int) -> None:
    weight = torch.randn(37, 64)
    assert not grid_scales(weight, 32, bits, torch.float16).any()


def test_groups_of_one_weight_are_judged_each_by_itself() -> None:
    weight = on_grid(0, -8, 7, 32)
    weight[3] += torch.randn(128) / 7
    weight[5, 40] += 0.3
    weight[7, :32] = 0
    same = (kept(weight, 4, 32) == weight).unflatten(1, (4, 32)).all(2)
    assert not same[3].any()
    assert same[5].tolist() == [True, False, True, True]
    assert same[[*range(3), 4, *range(6, 19)]].all()


@pytest.mark.parametrize("rounder", [round_to_nearest, round_by_search])
def test_the_stock_runtime_gets_no_negative_scales(rounder: Rounder) -> None:
    weight = torch.tensor([[0.5 * each for each in (8, -7, 3, 1, 0, 2, -4, 5)]])
    assert (rounder("", weight, Grid(bits=4, group=8, signed_scales=True)).scales == -0.5).all()
    assert (rounder("", weight, Grid(bits=4, group=8, scale=torch.bfloat16)).scales > 0).all()


# Superblocks


BLOCKS = {bits: Grid(bits=bits, group=32, signed_scales=True, minima=True) for bits in (4, 5, 6)}


def error(rounded: RoundedWeight, weight: Tensor) -> float:
    return float((rounded.numbers() - weight).square().mean())


@given(st.sampled_from([4, 5, 6]), st.integers(1, 40), st.integers(1, 20), st.integers(0, 1000), st.floats(-6, 6))
def test_every_number_is_within_a_step(bits: int, rows: int, groups: int, seed: int, size: float) -> None:
    torch.manual_seed(seed)
    weight = (torch.randn(rows, 32 * groups) + torch.randn(rows, 1)) * 2.0**size
    rounded = round_in_superblocks(weight, BLOCKS[bits])
    spans = weight.unflatten(1, (-1, 32))
    # A step, what is cut off beyond the last one, and what 8 bits of a superblock's largest scale and minimum leave.
    block = weight.abs().amax(1, keepdim=True).unsqueeze(-1)
    step = (spans.amax(-1, keepdim=True) - spans.amin(-1, keepdim=True)) / ((1 << bits) - 1)
    bound = 1.6 * step + block * ((1 << bits) / 127 + 0.01)
    assert bool(((rounded.numbers() - weight).unflatten(1, (-1, 32)).abs() <= bound).all())
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    assert low <= int(rounded.quanta.min()) <= int(rounded.quanta.max()) <= high


@pytest.mark.parametrize("size", [8, 24, 32, 64])
def test_no_other_line_of_the_steps_is_nearer(size: int) -> None:
    """By numpy's least squares in float64, for the whole numbers that each step gives."""
    random = np.random.default_rng(size)
    groups, weighed = random.normal(size=(2, 7, size)).astype(np.float32)
    groups[0], groups[1], weighed = 0.0, 0.5, np.abs(weighed)
    scales, minima = (each.flatten() for each in best_line(torch.from_numpy(groups), torch.from_numpy(weighed), 4))
    for x, w, scale, low in zip(groups.astype(np.float64), np.sqrt(weighed), scales.tolist(), minima.tolist(), strict=True):
        errors, found = [], []
        for steps in 15 + np.array([-0.6, -0.3, 0.0, 0.3, 0.6, 0.9, 1.2, 1.6]):
            q = ((x - x.min()) * steps / max(np.ptp(x), 1e-30)).round().clip(0, 15)
            best = np.linalg.lstsq(np.stack([q * w, w], axis=1), x * w, rcond=None)[0]
            errors.append(np.square((q * best[0] + best[1] - x) * w).sum())
            found.append(np.square((q * scale + low - x) * w).sum())
        assert min(found) <= min(errors) * 1.001 + 1e-9
    with pytest.raises(UsageError):
        best_line(torch.ones(1, size), torch.ones(1, size), 9)


@pytest.mark.parametrize("bits", BLOCKS)
def test_panels_hold_it(bits: int) -> None:
    weight = torch.randn(37, 576)
    rounded = round_in_superblocks(weight, BLOCKS[bits])
    packed = PackedWeight.of(rounded)
    assert weights(packed.packed, packed.factors, 37).equal(rounded.numbers())
    assert rounded.factors.superscales is not None
    assert rounded.factors.superscales.shape == (37, 4)  # 18 groups in two superblocks, of scales and of minima


def test_it_is_nearer_than_a_scale_alone() -> None:
    torch.manual_seed(0)
    weight = torch.randn(64, 512)
    blocks = round_in_superblocks(weight, BLOCKS[4])
    assert error(blocks, weight) < 0.8 * error(round_by_search("", weight, Grid(bits=4, group=32, signed_scales=True)), weight)
    assert error(round_in_superblocks(weight, BLOCKS[5]), weight) < 0.3 * error(blocks, weight)


@pytest.mark.parametrize("value", [0.0, 1.0, -3.0, 1e-30, 6e4])
def test_groups_of_one_number_keep_it(value: float) -> None:
    weight = torch.full((3, 64), value)
    numbers = round_in_superblocks(weight, BLOCKS[4]).numbers()
    assert numbers.isfinite().all()
    torch.testing.assert_close(numbers, weight, rtol=0.02, atol=1e-3)


def test_a_superblock_divides_the_groups() -> None:
    assert [superblock_of(groups) for groups in (1, 8, 17, 18, 34, 48, 64)] == [1, 8, 1, 9, 2, 16, 16]


def test_a_weight_that_was_quantized_before_keeps_its_numbers() -> None:
    torch.manual_seed(0)
    scales = torch.rand(8, 4, 1).half().float()
    weight = (torch.randint(-8, 8, (8, 4, 32)).float() * scales).flatten(1)
    for grid in BLOCKS.values():
        kept = round_in_blocks("", weight, grid)
        assert kept.numbers().equal(weight)
        assert kept.bits == 4


def test_rows_of_zeros_are_no_grid() -> None:
    torch.manual_seed(0)
    weight = torch.randn(8, 64)
    weight[6:] = 0.0
    rounded = round_in_blocks("", weight, BLOCKS[5])
    assert rounded.bits == 5
    assert not rounded.numbers()[6:].any()


def test_rounding_for_inputs_lowers_the_error_of_outputs() -> None:
    torch.manual_seed(0)
    x = torch.randn(400, 96) @ torch.randn(96, 96)
    weight, inputs = torch.randn(48, 96), layer_inputs(x, x)
    plain, known = round_in_superblocks(weight, BLOCKS[4]), round_by_gptq(weight, inputs, BLOCKS[4])
    left = [float(((each.numbers() - weight) @ x.T).square().mean()) for each in (plain, known)]
    assert left[1] < 0.7 * left[0]
    assert known.factors.minima is not None
