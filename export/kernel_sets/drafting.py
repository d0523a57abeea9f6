"""Draft tokens by their scores, in hybridge's own operators."""

from __future__ import annotations

import torch
from torch import Tensor

import hybridge.export.operators.moves  # noqa: F401  registers the operators

ops = torch.ops.hybridge


class HybridgeDrafting:
    """See ``hybridge.cache.operations.drafting.DraftingKernels``."""

    def draw(self, scores: Tensor, noise: Tensor, temperature: Tensor) -> Tensor:
        out: Tensor = ops.draw(scores, noise, temperature)
        return out

    def top_chance(self, scores: Tensor) -> Tensor:
        out: Tensor = ops.top_chance(scores)
        return out

    def best_candidates(self, scores: Tensor, count: int) -> Tensor:
        out: Tensor = ops.best_candidates(scores, count)
        return out
