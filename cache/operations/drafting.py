"""From the scores of draft tokens to the tokens, and to how likely they are.

Axes: N draft tokens, C scores of each: of the whole vocabulary, or of some candidates.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class DraftingKernels(Protocol):
    """Operations on scores [1, N, C] that a runtime may do better than plain operators can."""

    def draw(self, scores: Tensor, noise: Tensor, temperature: Tensor) -> Tensor:
        """Return the index int64 [1, N] of the best of each row, or, with a temperature above 0, of a draw by noise [1, N].

        temperature float32 [1]; noise in [0, 1) is a place in the running sum of softmax(scores / temperature).
        """

    def top_chance(self, scores: Tensor) -> Tensor:
        """Return float32 [1, N]: the largest of softmax(scores)."""

    def best_candidates(self, scores: Tensor, count: int) -> Tensor:
        """Return the indices int64 [1, N, count] of the largest of each row, the largest first."""


class CoreDrafting:
    """Core operators only. Scores that are NaN give some index within the row."""

    def draw(self, scores: Tensor, noise: Tensor, temperature: Tensor) -> Tensor:
        total = (scores / torch.where(temperature > 0, temperature, 1.0)).softmax(-1).cumsum(-1)
        drawn = (total <= noise.unsqueeze(-1) * total[..., -1:]).sum(-1).clamp(max=scores.shape[-1] - 1)
        return torch.where(temperature > 0, drawn, scores.argmax(-1))

    def top_chance(self, scores: Tensor) -> Tensor:
        return scores.softmax(-1).amax(-1)

    def best_candidates(self, scores: Tensor, count: int) -> Tensor:
        return scores.topk(count, dim=-1).indices
