"""Kimi delta attention and latent attention: Kimi Linear and Ling 3."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hybridge.cache.hybrid_cache import HybridCache
from hybridge.cache.layers.gated_delta_net import KimiDeltaAttentionLayer
from hybridge.cache.layers.latent_attention import LatentAttentionLayer
from hybridge.cache.recurrences.delta_gates import DeltaGates
from hybridge.export.adaptation.families.family import Adaptation, Mixer, StatefulMixer, short_convolution
from hybridge.export.adaptation.routing import UngroupedRouter
from hybridge.export.pinned.transformers import replace_method


class KimiDeltaAttention(StatefulMixer):
    """Kimi Linear's attention with a recurrent state. Source: transformers 5.23 ``KimiLinearDeltaAttention``."""

    def __init__(self, original: nn.Module, cache: HybridCache) -> None:
        super().__init__(original, cache)
        m: Any = original
        self.cache_layer(KimiDeltaAttentionLayer).convolution = short_convolution(m.conv1d, m.activation)

    def forward(self, hidden_states: Tensor, **_: Any) -> Tensor:
        m: Any = self.original
        mixed = torch.cat([m.q_proj(hidden_states), m.k_proj(hidden_states), m.v_proj(hidden_states)], dim=-1)
        out = self.cache_layer(KimiDeltaAttentionLayer).mix(mixed, self._gates(hidden_states), block=self.cache.block)
        gate = self._output_gate(hidden_states).unflatten(-1, (m.num_heads, m.head_dim))
        projected: Tensor = m.o_proj(m.o_norm(out, gate).flatten(2))
        return projected

    def _output_gate(self, x: Tensor) -> Tensor:
        """x [B, T, hidden] to [B, T, H D]."""
        m: Any = self.original
        gate: Tensor = m.g_b_proj(m.g_a_proj(x))
        return gate

    def _gates(self, x: Tensor) -> DeltaGates:
        m: Any = self.original
        gate = m.forget_gate
        rate, bias = gate.A_log.float().exp().flatten(), gate.dt_bias.float()
        return DeltaGates(decay=self._decay(gate, x), beta=m.b_proj(x), rate=rate, bias=bias, floor=self._floor(gate))

    def _decay(self, gate: Any, x: Tensor) -> Tensor:
        """x [B, T, hidden] to [B, T, H D]."""
        decay: Tensor = gate.f_b_proj(gate.f_a_proj(x))
        return decay

    def _floor(self, gate: Any) -> float | None:
        """The lowest log decay, for models that have one."""
        return getattr(gate, "safe_gate_lower_bound", None)


class FullRankGated(KimiDeltaAttention):
    """Ling 3's, with one projection for each of its gates. Source: transformers 5.23 ``BailingHybridDeltaAttention``."""

    def _output_gate(self, x: Tensor) -> Tensor:
        m: Any = self.original
        gate: Tensor = m.g_proj(x)
        return gate

    def _decay(self, gate: Any, x: Tensor) -> Tensor:
        decay: Tensor = gate.f_proj(x)
        return decay

    def _floor(self, gate: Any) -> float | None:
        return gate.lower_bound if gate.safe_gate else None


class LatentProjections(nn.Module):
    """The two halves of ``kv_b_proj``, apart and head by head, as ``hybridge.cache.layers.latent_attention`` uses them.

    Two parameters and not views of one: a runtime would copy a slice of a weight at every call.
    """

    def __init__(self, attention: Any) -> None:
        super().__init__()
        self.own = attention.qk_nope_head_dim
        weight = attention.kv_b_proj.weight.detach().unflatten(0, (attention.num_heads, -1))  # [H, N + V, C]
        self.key = nn.Parameter(weight[:, : self.own].clone())  # [H, N, C]
        self.value = nn.Parameter(weight[:, self.own :].transpose(1, 2).clone())  # [H, C, V]

    def absorb(self, query: Tensor) -> Tensor:
        absorbed = (query[..., : self.own].transpose(1, 2) @ self.key).transpose(1, 2)
        return absorbed if query.shape[-1] == self.own else torch.cat([absorbed, query[..., self.own :]], dim=-1)

    def expand(self, attended: Tensor) -> Tensor:
        return (attended.transpose(1, 2) @ self.value).transpose(1, 2)


def in_latent_space(attention: Any, cache: HybridCache) -> nn.Module:
    """Return transformers' own latent attention, which keeps its latents compressed."""
    projections = attention.kv_b_proj = LatentProjections(attention)
    replace_method(attention, "expand_kv", lambda latent, shared: (latent, shared))
    layer = cache.part(attention.layer_idx, LatentAttentionLayer, "attention")
    layer.absorb, layer.expand = projections.absorb, projections.expand
    return attention  # type: ignore[no-any-return]


def mixer(delta: Mixer, original: Any, cache: HybridCache) -> nn.Module:
    """Return ``delta`` for recurrent layers, transformers' own attention for the others: both are called ``self_attn``."""
    return delta(original, cache) if hasattr(original, "forget_gate") else in_latent_space(original, cache)


def router(original: Any, cache: HybridCache) -> nn.Module:
    """Return a router without choosing among groups if there is only one; several groups are transformers' own business."""
    return UngroupedRouter(original) if original.num_group == 1 else original


FAMILIES: Mapping[str, Adaptation] = {
    "bailing_hybrid": Adaptation(mixers={"self_attn": partial(mixer, FullRankGated), "mlp.gate": router}),
    "kimi_linear": Adaptation(mixers={"self_attn": partial(mixer, KimiDeltaAttention), "mlp.gate": router}),
}
