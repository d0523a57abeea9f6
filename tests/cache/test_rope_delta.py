"""Rope positions behind a picture lag behind the length, and are rolled back with the rest of the committed state."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hybridge.cache.block import CacheSizes
from hybridge.cache.hybrid_cache import HybridCache
from hybridge.cache.layers.rope_delta import RopeDeltaLayer, rope_delta_of
from hybridge.cache.operations.kernels import CoreKernels


def one(value: int) -> Tensor:
    return torch.tensor([value])


@pytest.fixture
def cache() -> HybridCache:
    sizes = CacheSizes(max_seq_len=40, prefill_chunk=8, verify_len=4, snapshot_slots=2)
    return HybridCache([RopeDeltaLayer(sizes, CoreKernels())], sizes)


def layer_of(cache: HybridCache) -> RopeDeltaLayer:
    found = rope_delta_of(cache.cache_layers())
    assert found is not None
    return found


def read(cache: HybridCache, count: int, advance: int | None = None) -> list[float]:
    """Commit rows, those of a picture if ``advance`` is given; the rope positions of tokens."""
    layer, block = layer_of(cache), cache.extend(8, one(count))
    positions = layer.place(block).rope_positions.tolist()
    cache.close(block)
    if advance is not None:
        layer.move(block, one(advance))
    return positions[:count]


def test_text_continues_after_the_larger_side_of_a_picture(cache: HybridCache) -> None:
    assert read(cache, 3) == [0, 1, 2]
    read(cache, 6, advance=3)  # 2 x 3 rows
    assert read(cache, 2) == [6, 7]
    cache.write_slot(one(1))
    read(cache, 8, advance=0)  # the first rows of a longer picture stay at its beginning
    assert read(cache, 1) == [8]
    read(cache, 4, advance=5)
    assert read(cache, 1) == [14]
    cache.read_slot(one(1))
    assert read(cache, 1) == [8]
    cache.reset()
    assert read(cache, 2) == [0, 1]


def test_a_refused_block_moves_nothing(cache: HybridCache) -> None:
    read(cache, 6, advance=2)
    for count in (0, 9, 40):
        block = cache.extend(8, one(count))
        cache.close(block)
        layer_of(cache).move(block, one(1))
    assert (cache.length.item(), layer_of(cache).rope_delta.item()) == (6, -4)


def test_rows_of_a_picture_are_placed_by_time_row_and_column(cache: HybridCache) -> None:
    read(cache, 3)
    read(cache, 6, advance=3)
    grid = torch.tensor([[0, 0, 0, 0], [0, 0, 1, 1], [0, 1, 0, 1]])
    placed = layer_of(cache).place(cache.extend(4, one(4)), grid)
    torch.testing.assert_close(placed.rope_positions, grid + 6.0)
    assert placed.positions.tolist() == [9, 10, 11, 12]


@pytest.mark.parametrize(
    ("count", "advance", "wanted"), [(4, 0, True), (4, 8, True), (4, 9, False), (4, -1, False), (1, 5, True)]
)
def test_positions_stay_behind_the_length(cache: HybridCache, count: int, advance: int, wanted: bool) -> None:
    read(cache, 6, advance=2)
    assert bool(layer_of(cache).allows(one(count), one(advance))) is wanted


def test_a_cache_without_one() -> None:
    assert rope_delta_of([]) is None
