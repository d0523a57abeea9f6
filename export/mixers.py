"""Token mixers that run over cache layers, built around the checkpoint's own modules.

A mixer keeps the original module's parameters and its place in the model; only the way through the state is ours. It takes and
ignores transformers' own cache and mask arguments.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.activations import ACT2FN

from hybridge.cache.gated_delta_net import GatedDeltaNetLayer
from hybridge.cache.hybrid_cache import HybridCache


class GatedDeltaNet(nn.Module):
    """Qwen3.5's and Qwen3-Next's linear attention; they differ in how the projections are packed.

    Source: transformers 5.23 ``Qwen3_5GatedDeltaNet`` and ``Qwen3NextGatedDeltaNet``.
    """

    def __init__(self, original: nn.Module, cache: HybridCache) -> None:
        super().__init__()
        self.original = original
        self.state = Unregistered(cache)
        self.layer.bind(self._convolve)

    @property
    def layer(self) -> GatedDeltaNetLayer:
        layer = self.state.cache.cache_layers()[self.original.layer_idx]  # type: ignore[index]
        assert isinstance(layer, GatedDeltaNetLayer)
        return layer

    def forward(self, hidden_states: Tensor, **_: Any) -> Tensor:
        m: Any = self.original
        B, T = hidden_states.shape[:2]
        mixed, z, b, a = self._project(hidden_states)
        log_decay = -m.A_log.float().exp() * F.softplus(a.float() + m.dt_bias)
        beta = b.sigmoid()
        out = self.layer.mix(mixed.transpose(1, 2), log_decay.transpose(1, 2), beta.transpose(1, 2), self.state.cache.block)
        out = m.norm(out.reshape(-1, m.head_v_dim), z.reshape(-1, m.head_v_dim))
        projected: Tensor = m.out_proj(out.reshape(B, T, -1))
        return projected

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """x [B, T, hidden] to conv input [B, T, C], gate z, and b, a [B, T, Hv]."""
        m: Any = self.original
        return m.in_proj_qkv(x), m.in_proj_z(x), m.in_proj_b(x), m.in_proj_a(x)

    def _convolve(self, window: Tensor) -> Tensor:
        m: Any = self.original
        mixed = F.conv1d(window, m.conv1d.weight, m.conv1d.bias, groups=window.shape[1])
        activated: Tensor = ACT2FN[m.activation](mixed)
        return activated


class PackedGatedDeltaNet(GatedDeltaNet):
    """Qwen3-Next: query, key, value and gate in one projection, interleaved by key head; likewise b and a."""

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        m: Any = self.original
        query, key, value, z, b, a = m.fix_query_key_value_ordering(m.in_proj_qkvz(x), m.in_proj_ba(x))
        mixed = torch.cat([part.flatten(2) for part in (query, key, value)], dim=-1)
        return mixed, z, b, a


class Unregistered:
    """Holds the cache for a module without making it a submodule: its buffers have one owner and one name."""

    def __init__(self, cache: HybridCache) -> None:
        self.cache = cache
