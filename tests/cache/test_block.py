"""What the layers of a block share belongs to the object that it was computed from, and to no later one of the same id."""

from __future__ import annotations

import weakref

import pytest
import torch

from hybridge.cache.block import Block
from hybridge.cache.operations.kernels import CoreKernels, Scoring, Visible, bias_by_key
from hybridge.export.kernel_sets.llm import LlmKernels, row_offset

TOKENS, ROWS, HEADS, DIM = 3, 7, 2, 8


@pytest.fixture
def block() -> Block:
    return Block(start=torch.tensor([0]), count=torch.tensor([TOKENS]), length=TOKENS)


@pytest.mark.parametrize("kernels", [CoreKernels(), LlmKernels()])
def test_a_mask_lives_as_long_as_what_is_made_of_it(block: Block, kernels: CoreKernels) -> None:
    """Else another one could be given its id, and what was made of the first."""
    query, keys, values = (torch.randn(1, count, HEADS, DIM) for count in (TOKENS, ROWS, ROWS))
    visible = Visible(held=torch.arange(ROWS), mask=torch.ones(TOKENS, ROWS, dtype=torch.bool))
    kernels.attend(query, keys, values, block, Scoring(scale=0.3), visible)
    alive = weakref.ref(visible)
    del visible
    assert alive() is not None


def test_positions_live_as_long_as_what_is_made_of_them(block: Block) -> None:
    held = torch.arange(ROWS)
    bias_by_key(torch.randn(1, TOKENS, HEADS, ROWS + 1), held, block)
    alive = weakref.ref(held)
    del held
    assert alive() is not None


def test_an_offset_leaves_room_for_the_block() -> None:
    block = Block(start=torch.tensor([ROWS - TOKENS]), count=torch.tensor([TOKENS]), length=TOKENS)
    assert row_offset(block, ROWS) == ROWS - TOKENS
    with pytest.raises(RuntimeError):
        row_offset(block, ROWS - 1)


def test_each_object_has_its_result_computed_once(block: Block) -> None:
    mask, equal, computed = torch.ones(2), torch.ones(2), []
    for of, expected in ((mask, 1), (mask, 1), (equal, 2), (None, 3), (mask, 1)):
        assert block.shared("count", lambda: computed.append(1) or len(computed), of=of) == expected
