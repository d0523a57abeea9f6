"""Mamba mixers of the first version.

Source: transformers 5.23 ``MambaMixer``, ``FalconMambaMixer``, ``JambaMambaMixer`` and ``ZambaMambaMixer``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from hybridge.cache.hybrid_cache import HybridCache
from hybridge.cache.layers.mamba import MambaLayer
from hybridge.cache.operations.conv_window import swapped
from hybridge.cache.recurrences.state_space import Selected, StepSize
from hybridge.export.adaptation.families.family import Adaptation, StatefulMixer, short_convolution
from hybridge.export.adaptation.families.mamba2 import number_shared_attention


class Mamba(StatefulMixer):
    """Mamba with its conv, gate and projections around ``MambaLayer``; norms of dt, B and C where the module has them."""

    def __init__(self, original: nn.Module, cache: HybridCache) -> None:
        super().__init__(original, cache)
        m: Any = original
        layer = self.cache_layer(MambaLayer, "mamba")
        layer.convolution = short_convolution(m.conv1d, m.activation)
        # A parameter of its own, because it is too large to be folded.
        self.rate = nn.Parameter(-m.A_log.detach().float().exp().view(-1, m.ssm_state_size), requires_grad=False)
        layer.rate = lambda: self.rate
        layer.skip = lambda: m.D.float().flatten()

    def forward(self, hidden_states: Tensor, **_: Any) -> Tensor:
        m: Any = self.original
        layer = self.cache_layer(MambaLayer, "mamba")
        conv_input, gate = self._project(hidden_states)
        x = layer.convolved(conv_input, block=self.cache.block)
        out = layer.mix(self._select(x), block=self.cache.block)
        contextualized: Tensor = m.out_proj((out * F.silu(gate)).to(hidden_states.dtype))
        return contextualized

    def _project(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """hidden [B, T, hidden] to a row that begins with the conv's input [B, T, C], and the gate [B, T, C]."""
        m: Any = self.original
        projected = m.in_proj(hidden)
        return projected, projected[..., m.intermediate_size :]

    def _select(self, x: Tensor) -> Selected:
        """x [B, T, C] and what it selects of itself."""
        m: Any = self.original
        R, N = m.time_step_rank, m.ssm_state_size
        selected = m.x_proj(x)
        dt, key, query = selected[..., :R], selected[..., R : R + N], selected[..., R + N :]
        if hasattr(m, "dt_layernorm"):
            dt, key, query = m.dt_layernorm(dt), m.b_layernorm(key), m.c_layernorm(query)
        steps = StepSize(raw=m.dt_proj(dt), count=m.intermediate_size)
        return Selected(x=x, steps=steps, key=key.unsqueeze(2), query=query.unsqueeze(2))


class ZambaMamba(Mamba):
    """Mamba by head: what is selected from a head's channels is its own, and the projection interleaves input and gate."""

    def _project(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        m: Any = self.original
        conv_input, gate = m.in_proj(hidden).unflatten(-1, (-1, 2)).unbind(-1)
        return conv_input, gate

    def _select(self, x: Tensor) -> Selected:
        m: Any = self.original
        R, N = m.time_step_rank, m.ssm_state_size
        by_head = swapped(x).unflatten(1, (m.n_mamba_heads, -1))
        selected = m.x_proj_weight @ by_head  # [B, H, R + 2 N, T]
        raw = swapped((m.dt_proj_weight @ selected[:, :, :R]).flatten(1, 2))
        key, query = (each.permute(0, 3, 1, 2) for each in (selected[:, :, R : R + N], selected[:, :, R + N :]))
        return Selected(x=x, steps=StepSize(raw=raw, count=raw.shape[2], bias=m.dt_proj_bias.flatten()), key=key, query=query)


FAMILIES: Mapping[str, Adaptation] = {
    "falcon_mamba": Adaptation(mixers={"mixer": Mamba}),
    "jamba": Adaptation(mixers={"mamba": Mamba}),
    "mamba": Adaptation(mixers={"mixer": Mamba}),
    "zamba": Adaptation(mixers={"mamba": ZambaMamba, "mamba_decoder.mamba": ZambaMamba}, prepare=number_shared_attention),
}
