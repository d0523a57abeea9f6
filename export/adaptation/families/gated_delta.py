"""Gated delta nets: Qwen3.5's and Qwen3-Next's linear attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from hybridge.cache.hybrid_cache import HybridCache
from hybridge.cache.layers.gated_delta_net import GatedDeltaNetLayer
from hybridge.cache.recurrences.delta_gates import DeltaGates
from hybridge.export.adaptation.families.family import Adaptation, StatefulMixer, short_convolution
from hybridge.export.checkpoint.decoder import decoder_of
from hybridge.export.pinned.transformers import replace_method


class GatedDeltaNet(StatefulMixer):
    """Qwen3.5's linear attention. Source: transformers 5.23 ``Qwen3_5GatedDeltaNet``."""

    def __init__(self, original: nn.Module, cache: HybridCache) -> None:
        super().__init__(original, cache)
        m: Any = original
        self.cache_layer(GatedDeltaNetLayer, "mixer").convolution = short_convolution(m.conv1d, m.activation)

    def forward(self, hidden_states: Tensor, **_: Any) -> Tensor:
        m: Any = self.original
        mixed, gate, b, a = self._project(hidden_states)
        rate, bias = m.A_log.float().exp(), m.dt_bias.float()
        gates = DeltaGates(decay=a, beta=b, rate=rate, bias=bias, strength=self.strength)
        out = self.cache_layer(GatedDeltaNetLayer, "mixer").mix(mixed, gates, block=self.cache.block)
        return self._gated(out, gate)

    @property
    def strength(self) -> float:
        """Return the largest beta."""
        return 1.0

    def _gated(self, out: Tensor, gate: Tensor) -> Tensor:
        """The rule's output [B, T, Hv, V] through norm, gate and projection."""
        m: Any = self.original
        projected: Tensor = m.out_proj(m.norm(out, gate.reshape(out.shape)).flatten(2))
        return projected

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """x [B, T, hidden] to conv input [B, T, C], gate z, and b, a [B, T, Hv]."""
        m: Any = self.original
        return m.in_proj_qkv(x), m.in_proj_z(x), m.in_proj_b(x), m.in_proj_a(x)


class PackedGatedDeltaNet(GatedDeltaNet):
    """Qwen3-Next: query, key, value and gate in one projection, interleaved by key head; likewise b and a.

    Source: transformers 5.23 ``Qwen3NextGatedDeltaNet``.
    """

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        m: Any = self.original
        query, key, value, z, b, a = m.fix_query_key_value_ordering(m.in_proj_qkvz(x), m.in_proj_ba(x))
        mixed = torch.cat([part.flatten(2) for part in (query, key, value)], dim=-1)
        return mixed, z, b, a


class OlmoGatedDeltaNet(GatedDeltaNet):
    """Everything projected apart, other names, and beta up to 2 where the state may turn its sign.

    Source: transformers 5.23 ``OlmoHybridGatedDeltaNet``.
    """

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        m: Any = self.original
        mixed = torch.cat([m.q_proj(x), m.k_proj(x), m.v_proj(x)], dim=-1)
        return mixed, m.g_proj(x), m.b_proj(x), m.a_proj(x)

    @property
    def strength(self) -> float:
        """Return the largest beta; beyond 1 the state may turn its sign."""
        return 2.0 if self.original.allow_neg_eigval else 1.0

    def _gated(self, out: Tensor, gate: Tensor) -> Tensor:
        m: Any = self.original
        projected: Tensor = m.o_proj(m.o_norm(out, gate.reshape(out.shape)).flatten(2))
        return projected


def text_positions_only(model: PreTrainedModel, cache: HybridCache) -> None:
    """Keep one position of a text's three: Qwen3.5 mixes the frequencies of time, height and width, equal for text."""
    rotary = decoder_of(model).rotary_emb
    replace_method(rotary, "recomposition_frequencies", lambda freq: torch.cat((freq[0], freq[0]), dim=-1))


QWEN3_5 = Adaptation(mixers={"linear_attn": GatedDeltaNet}, prepare=text_positions_only)

FAMILIES: Mapping[str, Adaptation] = {
    "olmo_hybrid": Adaptation(mixers={"linear_attn": OlmoGatedDeltaNet}),
    "qwen3_5_moe_text": QWEN3_5,
    "qwen3_5_text": QWEN3_5,
    "qwen3_next": Adaptation(mixers={"linear_attn": PackedGatedDeltaNet}),
}
