"""Weights that somebody quantized before keep their numbers, bit for bit, where our panels hold them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hybridge.export.operators.linear import weights
from hybridge.export.quantize.rounding import round_by_search, round_to_nearest
from hybridge.export.weights import Grid, PackedWeight, Rounder, grid_scales

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
