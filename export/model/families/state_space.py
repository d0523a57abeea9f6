"""Adapt families with Mamba, Mamba-2, lightning attention or RG-LRU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from hybridge.cache.hybrid_cache import HybridCache
from hybridge.cache.layers.recurrent import LightningAttentionLayer, Mamba2Layer, MambaLayer, RgLruLayer
from hybridge.cache.recurrences.linear_attention import LinearWeights, StepSize
from hybridge.cache.recurrences.recurrence import swapped
from hybridge.cache.recurrences.selective_scan import Selected
from hybridge.export.model.families.family import Adaptation, StatefulMixer, short_convolution
from hybridge.export.source.text_model import decoder_of
from hybridge.export.weights import computed


class Mamba2(StatefulMixer):
    """Mamba-2 with its conv, gate and projections around ``Mamba2Layer``.

    Source: transformers 5.23 ``Mamba2Mixer``, ``BambaMixer``, ``GraniteMoeHybridMambaLayer``, ``NemotronHMamba2Mixer``,
    ``Zamba2MambaMixer`` and ``FalconH1Mixer``; only the last differs.
    """

    def __init__(self, original: Any, cache: HybridCache) -> None:
        super().__init__(original, cache)
        layer = self.cache_layer(Mamba2Layer, "mamba")
        layer.convolution = short_convolution(original.conv1d, original.activation)
        layer.weights = lambda: LinearWeights(rate=-original.A_log.float().exp(), skip=original.D.float(), groups=layer.groups)

    def forward(self, hidden_states: Tensor, **_: Any) -> Tensor:
        m = self.original
        projected, inner = self._project(hidden_states), m.intermediate_size
        layer = self.cache_layer(Mamba2Layer, "mamba")
        out = layer.mix(projected, self._steps(projected), block=self.cache.block, start=inner)
        contextualized: Tensor = m.out_proj(self._gated(out, projected[..., :inner]).to(hidden_states.dtype))
        return contextualized

    def _steps(self, projected: Tensor) -> StepSize:
        """Return step sizes as the uncached forward has them; one token at a time, transformers forgets the limits."""
        m = self.original
        (low, high), H = m.time_step_limit, m.num_heads
        return StepSize(raw=projected, count=H, start=projected.shape[-1] - H, bias=m.dt_bias, low=low, high=high)

    def _project(self, x: Tensor) -> Tensor:
        """Map x [B, T, hidden] to gate, conv input and step side by side."""
        m = self.original
        projected: Tensor = m.in_proj(x)
        return projected

    def _gated(self, out: Tensor, gate: Tensor) -> Tensor:
        m = self.original
        normed: Tensor = m.norm(out, gate)
        return normed


class FalconH1Mamba(Mamba2):
    """A multiplier for each part of the projection, and a norm only if the config has one."""

    def _project(self, x: Tensor) -> Tensor:
        m = self.original
        projected: Tensor = m.in_proj(x * m.ssm_in_multiplier) * m.mup_vector
        return projected

    def _gated(self, out: Tensor, gate: Tensor) -> Tensor:
        return super()._gated(out, gate) if self.original.mamba_rms_norm else out * F.silu(gate)


def nemotron_mixer(mixer: nn.Module, cache: HybridCache) -> nn.Module:
    """Return the mixer for the kind of block: Nemotron-H calls each of them mixer."""
    return Mamba2(mixer, cache) if hasattr(mixer, "A_log") else mixer


def number_shared_attention(model: PreTrainedModel, cache: HybridCache) -> None:
    """Give the shared attention its layer's number, by which ours finds the cache layer; Zamba passes the layer itself."""
    for index, layer in enumerate(decoder_of(model).layers):
        shared = getattr(layer, "shared_transformer", None) or getattr(layer, "shared_transf", None)
        if shared is not None:
            shared.self_attn.layer_idx = index


class Mamba(StatefulMixer):
    """Mamba with its conv, gate and projections around ``MambaLayer``; norms of dt, B and C if the module has them.

    Source: transformers 5.23 ``MambaMixer``, ``FalconMambaMixer``, ``JambaMambaMixer`` and ``ZambaMambaMixer``.
    """

    def __init__(self, original: Any, cache: HybridCache) -> None:
        super().__init__(original, cache)
        layer = self.cache_layer(MambaLayer, "mamba")
        layer.convolution = short_convolution(original.conv1d, original.activation)
        # A parameter of its own, because it is too large to be folded; by way of float64, where NumPy's numbers are the same.
        states = original.ssm_state_size
        self.rate = computed(original.A_log, lambda each: -each.double().exp().float().view(-1, states))
        layer.rate = lambda: self.rate
        layer.skip = lambda: original.D.float().flatten()

    def forward(self, hidden_states: Tensor, **_: Any) -> Tensor:
        layer = self.cache_layer(MambaLayer, "mamba")
        conv_input, gate = self._project(hidden_states)
        x = layer.convolved(conv_input, block=self.cache.block)
        out = layer.mix(self._select(x), block=self.cache.block)
        contextualized: Tensor = self.original.out_proj((out * F.silu(gate)).to(hidden_states.dtype))
        return contextualized

    def _project(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Map hidden [B, T, hidden] to a row that begins with the conv's input [B, T, C], and the gate [B, T, C]."""
        m = self.original
        projected = m.in_proj(hidden)
        return projected, projected[..., m.intermediate_size :]

    def _select(self, x: Tensor) -> Selected:
        """Return x [B, T, C] and what it selects of itself."""
        m = self.original
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
        conv_input, gate = self.original.in_proj(hidden).unflatten(-1, (-1, 2)).unbind(-1)
        return conv_input, gate

    def _select(self, x: Tensor) -> Selected:
        m = self.original
        R, N = m.time_step_rank, m.ssm_state_size
        by_head = swapped(x).unflatten(1, (m.n_mamba_heads, -1))
        selected = m.x_proj_weight @ by_head  # [B, H, R + 2 N, T]
        raw = swapped((m.dt_proj_weight @ selected[:, :, :R]).flatten(1, 2))
        key, query = (each.permute(0, 3, 1, 2) for each in (selected[:, :, R : R + N], selected[:, :, R + N :]))
        return Selected(x=x, steps=StepSize(raw=raw, count=raw.shape[2], bias=m.dt_proj_bias.flatten()), key=key, query=query)


class LightningAttention(StatefulMixer):
    """Linear attention whose heads fade at fixed rates. Source: transformers 5.23 ``MiniMaxLightningAttention``."""

    def __init__(self, original: Any, cache: HybridCache) -> None:
        super().__init__(original, cache)
        # A parameter, because what depends on buffers is not folded: they are state.
        self.rate = nn.Parameter(-original.slope_rate.detach().flatten(), requires_grad=False)
        self.cache_layer(LightningAttentionLayer).weights = self._weights

    def _weights(self) -> LinearWeights:
        return LinearWeights(rate=self.rate, groups=len(self.rate), by_head=True)

    def forward(self, hidden_states: Tensor, **_: Any) -> tuple[Tensor, None]:
        m = self.original
        mixed = m.act_fn(m.qkv_proj(hidden_states))
        out = self.cache_layer(LightningAttentionLayer).mix(mixed, block=self.cache.block)
        out = m.norm(out.to(hidden_states.dtype))
        return m.out_proj(m.output_gate(hidden_states).sigmoid() * out), None


def minimax_mixer(mixer: nn.Module, cache: HybridCache) -> nn.Module:
    """Return the mixer for the kind of attention: MiniMax calls both of them self_attn."""
    return LightningAttention(mixer, cache) if hasattr(mixer, "slope_rate") else mixer


class RecurrentBlock(StatefulMixer):
    """A conv and a real-gated linear recurrent unit, times a gate.

    Source: transformers 5.23 ``RecurrentGemmaRecurrentBlock`` and ``RecurrentGemmaRglru``.
    """

    def __init__(self, original: Any, cache: HybridCache) -> None:
        super().__init__(original, cache)
        self.cache_layer(RgLruLayer).convolution = short_convolution(original.conv_1d, None)

    def forward(self, input_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, None]:
        m = self.original
        layer = self.cache_layer(RgLruLayer)
        log_decay, gated = self._gates(layer.convolved(m.linear_x(input_states), block=self.cache.block))
        out = layer.mix(log_decay, gated, block=self.cache.block).to(input_states.dtype)
        return m.linear_out(out * m.act_fn(m.linear_y(input_states))), None

    def _gates(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Map x [B, T, C] to the log decay and the gated and normalized input, [B, T, C] each."""
        m = self.original.rg_lru
        input_gate = self._by_head(x, m.input_gate_weight, m.input_gate_bias)
        recurrent_gate = self._by_head(x, m.recurrent_gate_weight, m.recurrent_gate_bias)
        log_decay = -8.0 * recurrent_gate * F.softplus(m.recurrent_param)
        # The first token of a text starts the state: nothing fades, so nothing is made up for.
        first = (self.cache.block.positions == 0)[:, None]
        norm = torch.where(first, 1.0, (1.0 - (2.0 * log_decay).exp()).sqrt())
        return log_decay.float(), (x * input_gate * norm).float()

    def _by_head(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Return the gate [B, T, C] of x, whose heads have a matrix [C / H, C / H] each."""
        heads = x.unflatten(-1, (len(weight), -1)).transpose(1, 2) @ weight + bias.unsqueeze(1)
        gate: Tensor = heads.transpose(1, 2).flatten(2).sigmoid()
        return gate


def temporal_block(mixer: nn.Module, cache: HybridCache) -> nn.Module:
    """Return the mixer for the kind of block: RecurrentGemma calls attention and recurrence temporal blocks."""
    return RecurrentBlock(mixer, cache) if hasattr(mixer, "rg_lru") else mixer


FAMILIES: Mapping[str, Adaptation] = {
    "falcon_mamba": Adaptation(mixers={"mixer": Mamba}),
    "jamba": Adaptation(mixers={"mamba": Mamba}),
    "mamba": Adaptation(mixers={"mixer": Mamba}),
    "zamba": Adaptation(mixers={"mamba": ZambaMamba, "mamba_decoder.mamba": ZambaMamba}, prepare=number_shared_attention),
    "bamba": Adaptation(mixers={"mamba": Mamba2}),
    "falcon_h1": Adaptation(mixers={"mamba": FalconH1Mamba}),
    "granitemoehybrid": Adaptation(mixers={"mamba": Mamba2}),
    "mamba2": Adaptation(mixers={"mixer": Mamba2}),
    "nemotron_h": Adaptation(mixers={"mixer": nemotron_mixer}),
    "zamba2": Adaptation(mixers={"mamba": Mamba2, "mamba_decoder.mamba": Mamba2}, prepare=number_shared_attention),
    "minimax": Adaptation(mixers={"self_attn": minimax_mixer}),
    "recurrent_gemma": Adaptation(mixers={"temporal_block": temporal_block}),
}
