"""Choose draft tokens by their scores: the best one or a draw, the best one's probability, and the best candidates.

Axes: N rows, C scores in each.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hybridge.cache.operations.drafting import CoreDrafting
from hybridge.runtime.kernels.define import define


def draw(scores: Tensor, noise: Tensor, temperature: Tensor) -> Tensor:
    """Return the index int64 [1, N] of the best of scores [1, N, C], or of a draw from softmax(scores / temperature).

    noise float32 [1, N], in [0, 1), decides the draw where temperature, float32 [1], is above 0.
    """
    return CoreDrafting().draw(scores, noise, temperature)


def top_chance(scores: Tensor) -> Tensor:
    """Return float32 [1, N]: the largest of softmax(scores), scores [1, N, C]."""
    return CoreDrafting().top_chance(scores)


def best_candidates(scores: Tensor, count: int) -> Tensor:
    """Return the indices int64 [1, N, count] of the largest of scores [1, N, C], the largest first."""
    return CoreDrafting().best_candidates(scores, count)


def _indices(scores: Tensor, *shape: int) -> Tensor:
    return scores.new_empty(*shape, dtype=torch.long)


define(
    "draw",
    "Tensor scores, Tensor noise, Tensor temperature",
    draw,
    lambda scores, *_: _indices(scores, *scores.shape[:2]),
)
define("top_chance", "Tensor scores", top_chance, lambda scores: scores.new_empty(*scores.shape[:2]))
define(
    "best_candidates",
    "Tensor scores, int count",
    best_candidates,
    lambda scores, count: _indices(scores, *scores.shape[:2], count),
)
