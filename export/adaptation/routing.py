"""Routers of experts in fewer operators than transformers' own, with the same answers."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn


class UngroupedRouter(nn.Module):
    """A sigmoid router whose experts are one group: transformers chooses the best groups among them all the same.

    Source: transformers 5.23 ``KimiLinearTopkRouter``, which is that of DeepSeek-V3.
    """

    def __init__(self, original: nn.Module) -> None:
        super().__init__()
        self.original = original

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Map hidden_states [..., hidden] of T tokens to logits [T, E], weights and indices of the chosen experts [T, N]."""
        m: Any = self.original
        logits = F.linear(hidden_states.view(-1, m.hidden_dim).float(), m.weight.float())
        scores = logits.sigmoid()
        indices = (scores + m.e_score_correction_bias).topk(m.top_k, dim=-1, sorted=False).indices
        weights = scores.gather(1, indices)
        if m.norm_topk_prob:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return logits, weights * m.routed_scaling_factor, indices
