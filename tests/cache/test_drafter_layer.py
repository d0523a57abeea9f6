"""What a drafter in the program reads, and does with its scores, by the definition."""

import pytest
import torch
from drafter_programs import drawn_token

from hybridge.cache.block import CacheSizes
from hybridge.cache.layers.drafter import DrafterLengthLayer
from hybridge.cache.operations.kernels import CoreKernels

SCORES = torch.tensor([[[0.0, 1.0, -1.0, 0.5], [2.0, 2.0, 2.0, 2.0]]])


@pytest.mark.parametrize("temperature", [0.3, 1.0, 3.0])
def test_rows_are_drawn_from_their_softmax_by_the_noise_of_a_token(temperature: float) -> None:
    """Where the scores are of other tokens, the noise is theirs."""
    noise, heat = torch.arange(4000), torch.tensor([temperature])
    many = SCORES[:, :1].expand(-1, len(noise), -1)
    drawn = CoreKernels().draw(many, noise[None], heat)[0]
    wanted = (SCORES[0, 0] / temperature).softmax(-1)
    torch.testing.assert_close(torch.bincount(drawn, minlength=4) / len(noise), wanted, atol=0.03, rtol=0)
    row = torch.full((1000,), -torch.inf)
    row[[7, 900, 3, 21]] = SCORES[0, 0]
    assert drawn[:200].tolist() != (chosen := [drawn_token(row, temperature, bits) for bits in range(200)])
    ids = torch.tensor([[[7, 900, 3, 21]]])
    by_id = CoreKernels().draw(many[:, :200], noise[None, :200], heat, ids)
    assert ids[0, 0][by_id[0]].tolist() == chosen


def test_without_a_temperature_it_is_the_best() -> None:
    drawn = CoreKernels().draw(SCORES, torch.tensor([[1, 2**32 - 1]]), torch.tensor([0.0]))
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
