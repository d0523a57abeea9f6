"""What a drafter in the program reads, and does with its scores, by the definition."""

import pytest
import torch

from hybridge.cache.block import CacheSizes
from hybridge.cache.layers.drafter import DrafterLengthLayer
from hybridge.cache.operations.kernels import CoreKernels

SCORES = torch.tensor([[[0.0, 1.0, -1.0, 0.5], [2.0, 2.0, 2.0, 2.0]]])


@pytest.mark.parametrize("temperature", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("place", [0.0, 0.2, 0.5, 0.999])
def test_a_draw_is_a_place_in_the_running_sum(temperature: float, place: float) -> None:
    drawn = CoreKernels().draw(SCORES, torch.full((1, 2), place), torch.tensor([temperature]))
    sums = (SCORES.double() / temperature).softmax(-1).cumsum(-1)[0]
    assert drawn.tolist() == [
        [int(torch.searchsorted(row, torch.tensor([place], dtype=torch.float64), right=True)) for row in sums]
    ]


def test_without_a_temperature_it_is_the_best() -> None:
    drawn = CoreKernels().draw(SCORES, torch.full((1, 2), 0.999), torch.tensor([0.0]))
    assert drawn.tolist() == [[1, 0]]


def test_the_candidates_are_the_best_and_the_chance_is_the_largest() -> None:
    assert CoreKernels().best_candidates(SCORES[:, :1], 3).tolist() == [[[1, 3, 0]]]
    torch.testing.assert_close(CoreKernels().top_probability(SCORES), SCORES.softmax(-1)[..., 1])


@pytest.mark.parametrize(
    ("count", "ahead", "fits"), [(3, 0, True), (3, 3, True), (3, 4, False), (0, 0, False), (6, 0, True), (7, 0, False)]
)
def test_a_drafter_reads_what_leaves_room_for_its_draft_tokens(count: int, ahead: int, fits: bool) -> None:
    """At most 6 at once; 4 were read before, and there is room for 10 or for 20."""
    layer = DrafterLengthLayer(CacheSizes(max_seq_len=10 if count == 3 else 20), CoreKernels())
    layer.drafted_length.fill_(4)
    block = layer.extend(6, torch.tensor([count]), ahead)
    assert (int(block.start), int(block.count)) == ((4, count) if fits else (layer.sizes.max_seq_len, 0))
    assert layer.close(block).tolist() == [4 + count if fits else -1]
