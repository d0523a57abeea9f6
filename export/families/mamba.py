"""Mamba mixers of the first version.

Source: transformers 5.23 ``MambaMixer``, ``FalconMambaMixer``, ``JambaMambaMixer`` and ``ZambaMambaMixer``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from hybridge.cache.hybrid_cache import HybridCache
from hybridge.cache.mamba import MambaLayer
from hybridge.export.families.family import Adaptation, StatefulMixer, causal_conv
from hybridge.export.families.mamba2 import number_shared_attention


class Mamba(StatefulMixer):
    """Mamba with its conv, gate and projections around ``MambaLayer``; norms of dt, B and C where the module has them."""

    def __init__(self, original: nn.Module, cache: HybridCache) -> None:
        super().__init__(original, cache)
        m: Any = original
        layer = self.cache_layer(MambaLayer, "mamba")
        layer.convolve = causal_conv(m.conv1d, m.activation)
        layer.rate = lambda: -m.A_log.float().exp().view(layer.heads, -1, m.ssm_state_size)
        layer.skip = lambda: m.D.float().view(layer.heads, -1)

    def forward(self, hidden_states: Tensor, **_: Any) -> Tensor:
        m: Any = self.original
        layer = self.cache_layer(MambaLayer, "mamba")
        conv_input, gate = self._project(hidden_states)
        x = layer.convolved(conv_input)
        dt, key, query = self._select(x)
        out = layer.mix(conv_input, dt, key, query, x, block=self.cache.block)
        contextualized: Tensor = m.out_proj((out * F.silu(gate)).to(hidden_states.dtype))
        return contextualized

    def _project(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """hidden [B, T, hidden] to the conv's input [B, C, T] and the gate [B, T, C]."""
        m: Any = self.original
        projected = m.in_proj(hidden)
        return projected[..., : m.intermediate_size].transpose(1, 2), projected[..., m.intermediate_size :]

    def _select(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x [B, C, T] to dt [B, 1, C, T] after softplus, and key and query [B, 1, N, T]."""
        m: Any = self.original
        R, N = m.time_step_rank, m.ssm_state_size
        selected = m.x_proj(x.transpose(1, 2))
        dt, key, query = selected[..., :R], selected[..., R : R + N], selected[..., R + N :]
        if hasattr(m, "dt_layernorm"):
            dt, key, query = m.dt_layernorm(dt), m.b_layernorm(key), m.c_layernorm(query)
        dt = F.softplus(m.dt_proj(dt))
        return tuple(each.float().transpose(1, 2).unsqueeze(1) for each in (dt, key, query))  # type: ignore[return-value]


class ZambaMamba(Mamba):
    """Mamba by head: what is selected from a head's channels is its own, and the projection interleaves input and gate."""

    def _project(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        m: Any = self.original
        conv_input, gate = m.in_proj(hidden).unflatten(-1, (-1, 2)).unbind(-1)
        return conv_input.transpose(1, 2), gate

    def _select(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        m: Any = self.original
        R, N = m.time_step_rank, m.ssm_state_size
        selected = m.x_proj_weight @ x.unflatten(1, (m.n_mamba_heads, -1))  # [B, H, R + 2 N, T]
        dt = F.softplus(m.dt_proj_weight @ selected[:, :, :R] + m.dt_proj_bias.unsqueeze(-1))
        return dt.float(), selected[:, :, R : R + N].float(), selected[:, :, R + N :].float()


FAMILIES: Mapping[str, Adaptation] = {
    "falcon_mamba": Adaptation(mixers={"mixer": Mamba}),
    "jamba": Adaptation(mixers={"mamba": Mamba}),
    "mamba": Adaptation(mixers={"mixer": Mamba}),
    "zamba": Adaptation(mixers={"mamba": ZambaMamba, "mamba_decoder.mamba": ZambaMamba}, prepare=number_shared_attention),
}
