"""Mamba-2 mixers.

Source: transformers 5.23 ``Mamba2Mixer``, ``BambaMixer``, ``GraniteMoeHybridMambaLayer``, ``NemotronHMamba2Mixer``,
``Zamba2MambaMixer`` and ``FalconH1Mixer``; only the last differs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from hybridge.cache.hybrid_cache import HybridCache
from hybridge.cache.layers.mamba2 import Mamba2Layer
from hybridge.cache.recurrences.state_space import LinearAttention, StepSize
from hybridge.export.adaptation.families.family import Adaptation, StatefulMixer, short_convolution
from hybridge.export.checkpoint.decoder import decoder_of


class Mamba2(StatefulMixer):
    """Mamba-2 with its conv, gate and projections around ``Mamba2Layer``."""

    def __init__(self, original: nn.Module, cache: HybridCache) -> None:
        super().__init__(original, cache)
        m: Any = original
        layer = self.cache_layer(Mamba2Layer, "mamba")
        layer.convolution = short_convolution(m.conv1d, m.activation)
        layer.weights = lambda: LinearAttention(rate=-m.A_log.float().exp(), skip=m.D.float(), groups=layer.groups)

    def forward(self, hidden_states: Tensor, **_: Any) -> Tensor:
        m: Any = self.original
        projected, inner = self._project(hidden_states), m.intermediate_size
        layer = self.cache_layer(Mamba2Layer, "mamba")
        out = layer.mix(projected, self._steps(projected), block=self.cache.block, start=inner)
        contextualized: Tensor = m.out_proj(self._gated(out, projected[..., :inner]).to(hidden_states.dtype))
        return contextualized

    def _steps(self, projected: Tensor) -> StepSize:
        """Step sizes as the uncached forward has them; one token at a time, transformers forgets the limits."""
        m: Any = self.original
        (low, high), H = m.time_step_limit, m.num_heads
        return StepSize(raw=projected, count=H, start=projected.shape[-1] - H, bias=m.dt_bias, low=low, high=high)

    def _project(self, x: Tensor) -> Tensor:
        """x [B, T, hidden] to gate, conv input and step side by side."""
        m: Any = self.original
        projected: Tensor = m.in_proj(x)
        return projected

    def _gated(self, out: Tensor, gate: Tensor) -> Tensor:
        m: Any = self.original
        normed: Tensor = m.norm(out, gate)
        return normed


class FalconH1Mamba(Mamba2):
    """A multiplier for each part of the projection, and a norm only if the config has one."""

    def _project(self, x: Tensor) -> Tensor:
        m: Any = self.original
        projected: Tensor = m.in_proj(x * m.ssm_in_multiplier) * m.mup_vector
        return projected

    def _gated(self, out: Tensor, gate: Tensor) -> Tensor:
        m: Any = self.original
        return super()._gated(out, gate) if m.mamba_rms_norm else out * F.silu(gate)


def one_of_several(mixer: nn.Module, cache: HybridCache) -> nn.Module:
    """Return the mixer for the kind of block: Nemotron-H calls each of them mixer."""
    return Mamba2(mixer, cache) if hasattr(mixer, "A_log") else mixer


def number_shared_attention(model: PreTrainedModel, cache: HybridCache) -> None:
    """Number the shared attention by layer: Zamba hands it the layer with every call, ours finds the cache layer by number."""
    for index, layer in enumerate(decoder_of(model).layers):
        shared = getattr(layer, "shared_transformer", None) or getattr(layer, "shared_transf", None)
        if shared is not None:
            shared.self_attn.layer_idx = index


FAMILIES: Mapping[str, Adaptation] = {
    "bamba": Adaptation(mixers={"mamba": Mamba2}),
    "falcon_h1": Adaptation(mixers={"mamba": FalconH1Mamba}),
    "granitemoehybrid": Adaptation(mixers={"mamba": Mamba2}),
    "mamba2": Adaptation(mixers={"mixer": Mamba2}),
    "nemotron_h": Adaptation(mixers={"mixer": one_of_several}),
    "zamba2": Adaptation(mixers={"mamba": Mamba2, "mamba_decoder.mamba": Mamba2}, prepare=number_shared_attention),
}
