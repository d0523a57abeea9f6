"""What the layers of a block share belongs to the object that it was computed from, and to no later one of the same id."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from hybridge.cache.block import Block
from hybridge.cache.kernels import CoreKernels, Scoring, Visible
from hybridge.cache.relative_bias import relative_bias
from hybridge.export.llm_kernels import LlmKernels

TOKENS, ROWS, HEADS, DIM = 3, 7, 2, 8
OBJECTS = 20
"""Made and dropped one after the other: CPython gives most of them the memory, and so the id, of the one before."""


def new_block() -> Block:
    return Block(start=torch.tensor([0]), count=torch.tensor([TOKENS]), length=TOKENS)


def attend(kernels: CoreKernels) -> Callable[[Block, int], Tensor]:
    """Attention of a block over one visible row, another for each seed."""
    query, keys, values = (torch.randn(1, count, HEADS, DIM) for count in (TOKENS, ROWS, ROWS))

    def attended(block: Block, seed: int) -> Tensor:
        held = torch.arange(ROWS)
        visible = Visible(held=held, mask=(held == seed % ROWS).expand(TOKENS, ROWS))
        return kernels.attend(query, keys, values, block, Scoring(scale=0.3), visible)

    return attended


def add_bias() -> Callable[[Block, int], Tensor]:
    profiles = torch.randn(1, HEADS, TOKENS, ROWS + 1)
    return lambda block, seed: relative_bias(profiles, block)(torch.arange(ROWS).roll(seed))


@pytest.mark.parametrize("make", [lambda: attend(CoreKernels()), lambda: attend(LlmKernels()), add_bias])
def test_an_object_that_is_gone_lends_its_result_to_no_other(make: Callable[[], Callable[[Block, int], Tensor]]) -> None:
    compute, block = make(), new_block()
    for seed in range(OBJECTS):
        torch.testing.assert_close(compute(block, seed), compute(new_block(), seed))


def test_an_object_has_its_result_computed_once() -> None:
    block, mask, computed = new_block(), torch.ones(2), []
    for _ in range(2):
        assert block.shared("sum", lambda: computed.append(1) or len(computed), of=mask) == 1
    assert block.shared("sum", lambda: computed.append(1) or len(computed), of=torch.ones(2)) == 2
