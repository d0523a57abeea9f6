"""Models as near to one as another order of its sums is: where these choose other experts, so may a program that is right.

Experts are chosen by their scores. Where two are as good as equal, any rounding decides, and the logits jump: those of a random
kimi_linear by 27 % for an embedding that is changed by 3e-7.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import torch

from hybridge.export.check.oracle import uncached
from hybridge.export.check.random_program import Oracle

CHANGE, TRIES = 1e-6, 32


def nearby(model: Any) -> Generator[Oracle]:
    """Yield the model with each number of its embedding changed by about ``CHANGE`` of it, ``TRIES`` times another way."""
    weight, generator = model.get_input_embeddings().weight, torch.Generator().manual_seed(0)
    own = weight.data
    try:
        for _ in range(TRIES):
            weight.data = own * (1 + CHANGE * torch.randn(own.shape, generator=generator))
            yield uncached(model)
    finally:
        weight.data = own


def none_nearby() -> Generator[Oracle]:
    """Yield nothing: without experts no logit jumps."""
    yield from ()
