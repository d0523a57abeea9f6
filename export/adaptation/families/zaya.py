"""ZAYA: compressed convolutional attention (arXiv:2510.04476)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from hybridge.cache.layers.attention import AttentionLayer
from hybridge.cache.layers.delay import DelayLayer
from hybridge.cache.layers.short_conv import ShortConvLayer
from hybridge.cache.operations.kernels import Scoring
from hybridge.export.adaptation.families.family import Adaptation, StatefulMixer


class ConvolvedAttention(StatefulMixer):
    """ZAYA's attention, the heads of queries and keys side by side through all that is done to both.

    Axes: B batch, T tokens, H query heads, G key/value heads, D head dim. Source: transformers 5.23 ``ZayaAttention``,
    ``ZayaCCAProjection`` and ``ZayaQKNorm``.
    """

    def forward(self, hidden_states: Tensor, position_embeddings: tuple[Tensor, Tensor], **_: Any) -> tuple[Tensor, None]:
        m: Any = self.original
        heads = rotate(self._normalize(self._queries_and_keys(hidden_states)), *position_embeddings)
        query, key = heads[:, :, : m.num_attention_heads], heads[:, :, m.num_attention_heads :]
        layer = self.cache_layer(AttentionLayer, "attention")
        out = layer.attend(query, key, self._values(hidden_states), self.cache.block, Scoring(scale=m.scaling))
        return m.o_proj(out.flatten(2)), None

    def _queries_and_keys(self, x: Tensor) -> Tensor:
        """x [B, T, hidden] to [B, T, H + G, D]: projected and convolved, plus means of what is projected."""
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
        """Window [B, C, W + T] to [B, C, T]."""
        m: Any = self.original.qkv_proj
        mixed: Tensor = m.conv_qk_grouped(m.conv_qk_depthwise(window))
        return mixed

    def _normalize(self, heads: Tensor) -> Tensor:
        """Heads [B, T, H + G, D] to norm sqrt(D), the keys to a learned multiple of it."""
        m: Any = self.original
        target: Tensor = torch.cat([m.qk_norm.temp.new_ones(m.num_attention_heads), m.qk_norm.temp]) * m.head_dim**0.5
        norm = (heads * heads).sum(-1, keepdim=True).sqrt().clamp_min(torch.finfo(heads.dtype).eps)
        return heads * (target.unsqueeze(-1) / norm)

    def _values(self, x: Tensor) -> Tensor:
        """x [B, T, hidden] to [B, T, G, D]: the first half of all channels of this token, the others of the one before."""
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


FAMILIES: Mapping[str, Adaptation] = {"zaya": Adaptation(mixers={"self_attn": ConvolvedAttention})}
