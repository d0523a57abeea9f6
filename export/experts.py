"""Mixture of experts with static shapes: no loop over the experts that were hit, no data-dependent sizes.

Few tokens gather the weights of the experts they chose; many tokens run every expert once over all of them, which reads each
weight once instead of once for each choice. Both read the same stored weights.

Axes: T tokens, E experts, H hidden, I intermediate of an expert, N choices of a token.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.integrations.moe import ExpertsInterface, batched_mm_experts_forward

EXPERTS = "hybridge"


def run_experts(module: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """transformers' experts function: hidden_states [T, H], top_k_index and top_k_weights [T, N] to [T, H]."""
    if top_k_index.numel() < module.num_experts or not _is_plain(module):
        gathered: Tensor = batched_mm_experts_forward(module, hidden_states, top_k_index, top_k_weights)
        return gathered
    return _run_all(module, hidden_states, top_k_index, top_k_weights)


def _run_all(module: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    E = module.num_experts
    columns = hidden_states.T.expand(E, -1, -1)  # [E, H, T]: the weights stay as they are stored
    gate, up = (module.gate_up_proj @ columns).chunk(2, dim=1)
    out = module.down_proj @ (module.act_fn(gate) * up)  # [E, H, T]
    chosen = top_k_index.unsqueeze(-1) == torch.arange(E)  # [T, N, E]
    share = torch.where(chosen, top_k_weights.unsqueeze(-1), 0.0).sum(1)  # [T, E]
    total: Tensor = (out * share.T.unsqueeze(1)).sum(0)
    return total.T


def _is_plain(module: Any) -> bool:
    return bool(module.has_gate and not module.has_bias and not module.is_transposed and not module.has_post_expert_norm)


ExpertsInterface.register(EXPERTS, run_experts)
