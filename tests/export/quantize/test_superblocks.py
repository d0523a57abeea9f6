"""Rounding to groups with a scale and a minimum in superblocks: within its bounds whatever the numbers are."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hybridge.export.operators.linear import weights
from hybridge.export.quantize.gptq import layer_inputs, round_by_gptq
from hybridge.export.quantize.rounding import round_by_search, round_in_blocks, round_in_superblocks, superblock_of
from hybridge.export.weights import Grid, PackedWeight, RoundedWeight

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
