"""Adapt families with short convolutions: LFM2 and LFM3, Inkling, ZAYA."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from hybridge.cache.families.convolution import CONVOLUTIONS
from hybridge.cache.hybrid_cache import HybridCache
from hybridge.cache.layers.attention import AttentionLayer
from hybridge.cache.layers.short_conv import DelayLayer, ShortConvLayer
from hybridge.cache.operations.kernels import Scoring
from hybridge.cache.recurrences.short_conv import ShortConvolution, dynamic_conv
from hybridge.export.model.families.family import Adaptation, StatefulMixer, short_convolution


class ShortConv(StatefulMixer):
    """Gate, convolve, gate: ``C conv(B x)``, without an activation. Source: transformers 5.23 ``Lfm2ShortConv``."""

    def __init__(self, original: Any, cache: HybridCache) -> None:
        super().__init__(original, cache)
        self.cache_layer(ShortConvLayer).convolution = short_convolution(original.conv, None)

    def forward(self, hidden_states: Tensor, **_: Any) -> Tensor:
        m = self.original
        before, after, x = m.in_proj(hidden_states).chunk(3, dim=-1)
        mixed = self.cache_layer(ShortConvLayer).mix(before * x, block=self.cache.block)
        projected: Tensor = m.out_proj(after * mixed)
        return projected


SHORT_CONV = Adaptation(mixers={"conv": ShortConv})


# Inkling and Inkling 2: short convolutions around keys, values and outputs, and attention with a bias by distance.


class InklingShortConv(StatefulMixer):
    """Convolution plus its input, float32. Source: transformers 5.23 ``InklingShortConvolution``.

    The sum with the input is a tap of 1 more on the newest, and a scale is one of all taps: both are folded into constants.
    """

    def __init__(self, original: Any, cache: HybridCache) -> None:
        super().__init__(original, cache)
        self.conv_layer.convolution = ShortConvolution(weight=self._taps)

    @property
    def conv_layer(self) -> ShortConvLayer:
        return self.cache_layer(ShortConvLayer, CONVOLUTIONS[self.original.conv_idx])

    def forward(self, hidden_states: Tensor, *_: Any, **__: Any) -> Tensor:
        return self.conv_layer.mix(hidden_states, block=self.cache.block).to(hidden_states.dtype)

    def _taps(self) -> Tensor:
        taps: Tensor = self.original.conv1d.weight.float()  # [C, 1, K]
        taps = taps + (torch.arange(taps.shape[-1]) == taps.shape[-1] - 1)
        return taps * self.scale(taps.shape[-1])

    def scale(self, kernel: int) -> float:
        """Return the factor of the output."""
        return 1.0


class ScaledInklingShortConv(InklingShortConv):
    """Scaled down by the number of its terms. Source: transformers 5.23 ``Inkling2ShortConvolution``."""

    def scale(self, kernel: int) -> float:
        return 1.0 / math.sqrt(kernel + 1)


class DynamicShortConv(InklingShortConv):
    """Taps for each token, made of what its key or value is made of.

    Source: transformers 5.23 ``Inkling2DynamicShortConvolution``.
    """

    def forward(self, hidden_states: Tensor, dynamic_input: Tensor, *_: Any, **__: Any) -> Tensor:
        m = self.original
        static = m.static_weight.float()  # [K, C], the newest first
        K = static.shape[0]
        dynamic = m.weight_proj(dynamic_input).float().unflatten(-1, (m.num_heads, K))
        window = self.conv_layer.extend_window(hidden_states, self.cache.block)
        static, scale = static + (torch.arange(K) == 0)[:, None], 1.0 / math.sqrt(2 * K + 1)
        return dynamic_conv(window, static * scale, dynamic * scale).to(hidden_states.dtype)


def inkling2_key_value_conv(original: nn.Module, cache: HybridCache) -> nn.Module:
    """Return a dynamic convolution for full layers, a scaled one for sliding layers."""
    return (DynamicShortConv if hasattr(original, "weight_proj") else ScaledInklingShortConv)(original, cache)


class InklingAttention(StatefulMixer):
    """Attention without rope. Source: transformers 5.23 ``InklingAttention``."""

    def forward(self, hidden_states: Tensor, **_: Any) -> tuple[Tensor, None]:
        m = self.original
        x, shape = hidden_states, (-1, m.head_dim)
        query = m.q_norm(m.q_proj(x).unflatten(-1, shape))
        key = m.k_norm(m.k_sconv(m.k_proj(x)).unflatten(-1, shape))
        value = m.v_sconv(m.v_proj(x)).unflatten(-1, shape)
        relative = self.scaled(m.r_proj(x).unflatten(-1, (m.num_heads, -1)))
        return m.o_proj(self.attend(self.scaled(query), key, value, relative).flatten(2)), None

    def attend(self, query: Tensor, key: Tensor, value: Tensor, relative: Tensor, sinks: Tensor | None = None) -> Tensor:
        """Attend: query [B, T, H, D], key and value [B, T, G, D], relative [B, T, H, R], sinks [B, H, T] to [B, T, H, D]."""
        m = self.original
        bias = relative @ F.pad(m.rel_logits_proj.proj, (0, 1))  # none beyond the last distance
        scoring = Scoring(scale=m.scaling, bias=bias, sinks=sinks)
        return self.cache_layer(AttentionLayer, "attention").attend(query, key, value, self.cache.block, scoring)

    def scaled(self, x: Tensor) -> Tensor:
        """Scale x [B, T, H, ...] by a factor that grows with the position's logarithm, in full layers that ask for it."""
        m = self.original
        floor, alpha, block = m.config.log_scaling_n_floor, m.config.log_scaling_alpha, self.cache.block
        if m.is_sliding or floor is None:
            return x

        def factor() -> Tensor:
            growth = ((block.text_positions + 1).float() / floor).clamp(min=1.0).log()
            tau: Tensor = 1.0 + alpha * growth
            return tau[:, None, None]

        grown: Tensor = (x.float() * block.shared("log_scaling", factor)).to(x.dtype)
        return grown


class GatedAttention(InklingAttention):
    """With an output gate, a sink for each token, and in full layers inputs of their own for keys and values.

    Source: transformers 5.23 ``Inkling2SlidingAttention`` and ``Inkling2FullAttention``.
    """

    def forward(
        self,
        hidden_states: Tensor,
        key_hidden_states: Tensor | None = None,
        value_hidden_states: Tensor | None = None,
        **_: Any,
    ) -> tuple[Tensor, None]:
        m = self.original
        x, shape = hidden_states, (-1, m.head_dim)
        for_key = x if key_hidden_states is None else key_hidden_states
        for_value = x if value_hidden_states is None else value_hidden_states
        query = self.scaled(scaled_clip(m.q_l2_clip, m.q_proj(x).unflatten(-1, shape)))
        key = clip(m.k_sconv(m.k_proj(for_key), for_key).unflatten(-1, shape), m.k_l2_clip.threshold)
        value = m.v_sconv(m.v_proj(for_value), for_value).unflatten(-1, shape)
        value = m.v_norm(value.float()).to(value.dtype)
        relative = self.scaled(scaled_clip(m.rel_l2_clip, m.r_proj(x).unflatten(-1, (m.num_heads, -1))))
        sinks = m.sink_proj(x).transpose(1, 2)
        out = self.attend(query, key, value, relative, sinks).flatten(2)
        gated = (out.float() * m.gate_proj(x).float().sigmoid()).to(out.dtype)
        return m.o_proj(gated), None


def scaled_clip(module: Any, x: Tensor) -> Tensor:
    """Scale x and clip it. Source: transformers 5.23 ``Inkling2ScaledL2Clip``."""
    return clip(x.float() * module.scale.float(), module.threshold).to(x.dtype)


def clip(x: Tensor, threshold: float) -> Tensor:
    """Shorten vectors longer than ``threshold`` to that length. Source: transformers 5.23 ``Inkling2L2Clip``.

    The norm is written out: runtimes have no operator for it.
    """
    wide = x.float()
    norm = (wide * wide).sum(-1, keepdim=True).sqrt()
    return (wide * (threshold / (norm + 1e-6)).clamp(max=1.0)).to(x.dtype)


class BlockAttentionResidual(nn.Module):
    """Mixes what earlier blocks of layers left for the same token, [B, T, N, hidden], by attention; keeps nothing.

    Source: transformers 5.23 ``Inkling2BlockAttentionResidual``, as two products: its attention operator lowers to far more.
    """

    def __init__(self, original: Any, cache: HybridCache) -> None:
        super().__init__()
        self.original = original

    def forward(self, block_states: Tensor, partial_block_states: Tensor) -> tuple[Tensor, ...]:
        m = self.original
        states = m.norm(torch.cat([block_states, partial_block_states.unsqueeze(-2)], dim=-2).float())
        queries = m.query.float().view(-1, states.shape[-1]) * states.shape[-1] ** -0.5
        weights = (queries @ states.transpose(-1, -2)).softmax(-1)  # [B, T, Q, N]
        mixed: Tensor = weights @ states
        return mixed.unbind(-2)


def _final_input(model: PreTrainedModel, cache: HybridCache) -> None:
    decoder: Any = model.get_decoder()
    decoder.final_input = BlockAttentionResidual(decoder.final_input, cache)


# ZAYA: compressed convolutional attention (arXiv:2510.04476).


class ConvolvedAttention(StatefulMixer):
    """ZAYA's attention, the heads of queries and keys side by side through all that is done to both.

    Axes: B batch, T tokens, H query heads, G key/value heads, D head dim. Source: transformers 5.23 ``ZayaAttention``,
    ``ZayaCCAProjection`` and ``ZayaQKNorm``.
    """

    def forward(self, hidden_states: Tensor, position_embeddings: tuple[Tensor, Tensor], **_: Any) -> tuple[Tensor, None]:
        m = self.original
        heads = rotate(self._normalize(self._queries_and_keys(hidden_states)), *position_embeddings)
        query, key = heads[:, :, : m.num_attention_heads], heads[:, :, m.num_attention_heads :]
        layer = self.cache_layer(AttentionLayer, "attention")
        out = layer.attend(query, key, self._values(hidden_states), self.cache.block, Scoring(scale=m.scaling))
        return m.o_proj(out.flatten(2)), None

    def _queries_and_keys(self, x: Tensor) -> Tensor:
        """Map x [B, T, hidden] to [B, T, H + G, D]: projected and convolved, plus means of what is projected."""
        m: Any = self.original.qkv_proj
        query, key = m.q_proj(x), m.k_proj(x)
        window = self.cache_layer(ShortConvLayer, "conv").extend_window(torch.cat([query, key], dim=-1), self.cache.block)
        mixed = self._convolve(window.transpose(1, 2)).transpose(1, 2)
        # Of each query and its key, and for each key head of those.
        query, key = (each.unflatten(-1, (m.num_key_value_heads, -1, m.head_dim)) for each in (query, key))
        means = (query + key) * 0.5
        heads: Tensor = mixed.unflatten(-1, (-1, m.head_dim)) + torch.cat([means.flatten(2, 3), means.mean(3)], dim=2)
        return heads

    def _convolve(self, window: Tensor) -> Tensor:
        """Convolve window [B, C, W + T] to [B, C, T]."""
        m: Any = self.original.qkv_proj
        mixed: Tensor = m.conv_qk_grouped(m.conv_qk_depthwise(window))
        return mixed

    def _normalize(self, heads: Tensor) -> Tensor:
        """Normalize heads [B, T, H + G, D] to norm sqrt(D), the keys to a learned multiple of it."""
        m = self.original
        target: Tensor = torch.cat([m.qk_norm.temp.new_ones(m.num_attention_heads), m.qk_norm.temp]) * m.head_dim**0.5
        norm = (heads * heads).sum(-1, keepdim=True).sqrt().clamp_min(torch.finfo(heads.dtype).eps)
        return heads * (target.unsqueeze(-1) / norm)

    def _values(self, x: Tensor) -> Tensor:
        """Map x [B, T, hidden] to [B, T, G, D]: the first half of all channels of this token, the others of the one before."""
        m: Any = self.original.qkv_proj
        now, delayed = m.v_proj_current(x), m.v_proj_delayed(x)
        before = self.cache_layer(DelayLayer, "delay").mix(delayed, block=self.cache.block)
        values: Tensor = torch.cat([now, before], dim=-1).unflatten(-1, (-1, m.head_dim))
        return values


def rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the first R channels of heads [B, T, N, D] by positions cos, sin [B, T, R]."""
    R = cos.shape[-1]
    turned = torch.cat([-heads[..., R // 2 : R], heads[..., : R // 2]], dim=-1)
    rotated = heads[..., :R] * cos.unsqueeze(2) + turned * sin.unsqueeze(2)
    return torch.cat([rotated, heads[..., R:]], dim=-1)


FAMILIES: Mapping[str, Adaptation] = {
    "lfm2": SHORT_CONV,
    "lfm2_moe": SHORT_CONV,
    "lfm3": SHORT_CONV,
    "inkling_text": Adaptation(
        mixers={
            "self_attn.k_sconv": InklingShortConv,
            "self_attn.v_sconv": InklingShortConv,
            "attn_sconv": InklingShortConv,
            "mlp_sconv": InklingShortConv,
            "self_attn": InklingAttention,
        }
    ),
    "inkling2_text": Adaptation(
        mixers={
            "self_attn.k_sconv": inkling2_key_value_conv,
            "self_attn.v_sconv": inkling2_key_value_conv,
            "post_attention_convolution": ScaledInklingShortConv,
            "post_mlp_convolution": ScaledInklingShortConv,
            "attention_input": BlockAttentionResidual,
            "mlp_input": BlockAttentionResidual,
            "self_attn": GatedAttention,
        },
        prepare=_final_input,
    ),
    "zaya": Adaptation(mixers={"self_attn": ConvolvedAttention}),
}
