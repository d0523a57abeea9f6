"""Mixture of experts with static shapes: no loop over the experts that were hit, no data-dependent sizes.

Packed weights have an operator that reads what was chosen, once. With others, few tokens gather the weights of the experts they
chose; many tokens run every expert once over all of them, which reads each weight once instead of once for each choice. Both
read the same stored weights.

Axes: T tokens, E experts, H hidden, I intermediate of an expert, N choices of a token.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from hybridge.export.layers.packed_layers import PackedExperts
from hybridge.export.pinned.transformers import gated, gather_experts, is_experts, register_experts

EXPERTS = "hybridge"


def has_experts(model: nn.Module) -> bool:
    """Return whether any module of ``model`` has experts."""
    return any(projections(module) for module in model.modules())


def projections(module: nn.Module) -> list[str]:
    """Return the names of an experts module's stacked weights, first to last; none for a module of another kind."""
    return [_first(module), "down_proj"] if is_experts(module) else []


def run_experts(module: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """Run experts for transformers: hidden_states [T, H], top_k_index and top_k_weights [T, N] to [T, H]."""
    if isinstance(module.down_proj, PackedExperts):
        return _run_packed(module, hidden_states, top_k_index, top_k_weights)
    choices = top_k_index.numel()
    if isinstance(choices, int) and choices < module.num_experts:  # a symbol where the number of tokens is open
        return gather_experts(module, hidden_states, top_k_index, top_k_weights)
    return _run_all(module, hidden_states, top_k_index, top_k_weights)


def _run_packed(module: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    chosen = top_k_index.reshape(-1)
    x = hidden_states.unsqueeze(1).expand(-1, top_k_index.shape[1], -1).reshape(chosen.shape[0], -1)
    inner = getattr(module, _first(module))(x, chosen)
    out = _normed(module, module.down_proj(_activated(module, inner), chosen))
    total: Tensor = (out.view(*top_k_index.shape, -1) * top_k_weights.unsqueeze(-1)).sum(1)
    return total.to(hidden_states.dtype)


def _run_all(module: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    E = module.num_experts
    inner = _project(module, _first(module), hidden_states.expand(E, -1, -1))
    out = _normed(module, _project(module, "down_proj", _activated(module, inner)))  # [E, T, H]
    chosen = top_k_index.unsqueeze(-1) == torch.arange(E)  # [T, N, E]
    share = torch.where(chosen, top_k_weights.unsqueeze(-1), 0.0).sum(1)  # [T, E]
    total: Tensor = (out * share.T.unsqueeze(-1)).sum(0)
    return total.to(hidden_states.dtype)


def _first(module: Any) -> str:
    return "gate_up_proj" if module.has_gate else "up_proj"


def _activated(module: Any, inner: Tensor) -> Tensor:
    activated: Tensor = gated(module, inner) if module.has_gate else module.act_fn(inner)
    return activated


def _normed(module: Any, out: Tensor) -> Tensor:
    normed: Tensor = module.post_expert_norm(out) if module.has_post_expert_norm else out
    return normed


def _project(module: Any, name: str, x: Tensor) -> Tensor:
    """x [E, T, in] through the experts' weights of that name, as they are stored; [E, T, out]."""
    weight = getattr(module, name)
    out: Tensor = x @ weight if module.is_transposed else (weight @ x.transpose(1, 2)).transpose(1, 2)
    return out + getattr(module, f"{name}_bias").unsqueeze(1) if module.has_bias else out


register_experts(EXPERTS, run_experts)
