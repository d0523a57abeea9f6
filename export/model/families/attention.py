"""Adapt families with nothing but attention: most need no more than ``adapt`` does through transformers' own hook."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from hybridge.cache.hybrid_cache import HybridCache
from hybridge.cache.layers.attention import AttentionLayer
from hybridge.cache.layers.latent_attention import LatentAttentionLayer
from hybridge.cache.operations.kernels import Scoring
from hybridge.export.model.families.family import Adaptation, StatefulMixer, UngroupedRouter
from hybridge.export.pinned.transformers import replace_method
from hybridge.export.source.text_model import decoder_of
from hybridge.export.weights import computed

PLAIN = (
    "cohere2", "exaone4", "gemma2", "gemma3_text", "gemma4_text", "gemma4_unified_text", "gpt_oss", "granite_swa",
    "hunyuan_v1_dense", "llama", "ministral", "mistral", "olmo3", "phi3", "qwen2", "qwen3", "qwen3_moe", "smollm3",
)  # fmt: skip


# Llama 4: rope without complex numbers, temperature by position on layers without rope, and experts chosen before
# they run.
#
# Source: transformers 5.23 ``modeling_llama4.py``.


Rope = tuple[Tensor, Tensor]
"""cos and sin [1, T, 1, D / 2]."""


class RealRope(nn.Module):
    """Return as real numbers what ``Llama4TextRotaryEmbedding`` returns as complex ones, which no runtime has."""

    def __init__(self, original: Any) -> None:
        super().__init__()
        self.original = original

    def forward(self, x: Tensor, position_ids: Tensor) -> Rope:
        m = self.original
        angles = (position_ids[..., None].float() * m.inv_freq)[:, :, None]
        return angles.cos() * m.attention_scaling, angles.sin() * m.attention_scaling


class Llama4Attention(StatefulMixer):
    """``Llama4TextAttention``."""

    def forward(self, hidden_states: Tensor, position_embeddings: Rope, **_: Any) -> tuple[Tensor, None]:
        m = self.original
        heads = (*hidden_states.shape[:2], -1, m.head_dim)
        query, key, value = (project(hidden_states).view(heads) for project in (m.q_proj, m.k_proj, m.v_proj))
        if m.use_rope:
            query, key = rotate(query, position_embeddings), rotate(key, position_embeddings)
            if hasattr(m, "qk_norm"):
                query, key = m.qk_norm(query), m.qk_norm(key)
        elif m.attn_temperature_tuning:
            query = (query * self._temperature()).to(query.dtype)
        layer = self.cache_layer(AttentionLayer)
        out = layer.attend(query, key, value, self.cache.block, Scoring(scale=m.scaling))
        return m.o_proj(out.flatten(2)), None

    def _temperature(self) -> Tensor:
        """Return [T, 1, 1], growing with the position. Source: arXiv:2501.19399."""
        m = self.original
        steps = torch.floor((self.cache.block.positions.float() + 1.0) / m.floor_scale)
        scale: Tensor = torch.log1p(steps) * m.attn_scale + 1.0
        return scale[:, None, None]


def rotate(x: Tensor, rope: Rope) -> Tensor:
    """Rotate neighbouring pairs of x [B, T, H, D], in float32."""
    cos, sin = rope
    even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2).to(x.dtype)


class Llama4Experts(nn.Module):
    """``Llama4TextMoe``: the score scales an expert's input. One token reads only the experts that it chose."""

    def __init__(self, original: Any, cache: HybridCache) -> None:
        super().__init__()
        self.original = original

    def forward(self, hidden_states: Tensor) -> tuple[Any, Any]:
        m = self.original
        tokens = hidden_states.reshape(-1, m.hidden_dim)
        best, chosen = torch.topk(nn.functional.linear(tokens, m.router.weight), m.top_k, dim=1)
        if chosen.numel() >= m.num_experts:
            every: tuple[Any, Any] = m(hidden_states)
            return every
        routed = tokens.repeat_interleave(m.top_k, dim=0) * best.sigmoid().reshape(-1, 1)
        experts, chosen = m.experts, chosen.reshape(-1)
        gate, up = (routed.unsqueeze(1) @ experts.gate_up_proj[chosen]).chunk(2, dim=-1)
        out = (up * experts.act_fn(gate)) @ experts.down_proj[chosen]
        return m.shared_expert(tokens) + out.view(len(tokens), m.top_k, -1).sum(1), None


# Latent attention: DeepSeek's, and that of Kimi Linear and Ling 3.


class LatentProjections(nn.Module):
    """The two halves of ``kv_b_proj``, apart and head by head, as ``hybridge.cache.layers.latent_attention`` uses them.

    Two parameters and not views of one: a runtime would copy a slice of a weight at every call.
    """

    def __init__(self, attention: Any) -> None:
        super().__init__()
        self.own = attention.qk_nope_head_dim
        own, heads, weight = self.own, attention.num_heads, attention.kv_b_proj.weight  # [H (N + V), C]
        self.key = computed(weight, lambda each: each.unflatten(0, (heads, -1))[:, :own])  # [H, N, C]
        self.value = computed(weight, lambda each: each.unflatten(0, (heads, -1))[:, own:].transpose(1, 2))  # [H, C, V]

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


class RealLatentAttention(StatefulMixer):
    """``DeepseekV2Attention`` with rope in real numbers. Source: transformers 5.23 ``modeling_deepseek_v2.py``."""

    def __init__(self, original: Any, cache: HybridCache) -> None:
        super().__init__(in_latent_space(original, cache), cache)

    def forward(self, hidden_states: Tensor, position_embeddings: Rope, **_: Any) -> tuple[Tensor, None]:
        m = self.original
        projected = m.q_proj(hidden_states) if m.q_proj else m.q_b_proj(m.q_a_layernorm(m.q_a_proj(hidden_states)))
        query = projected.unflatten(-1, (m.num_heads, m.qk_head_dim))
        query = torch.cat(
            [query[..., : m.qk_nope_head_dim], rotate(query[..., m.qk_nope_head_dim :], position_embeddings)], dim=-1
        )
        compressed = m.kv_a_proj_with_mqa(hidden_states).unsqueeze(2)
        latent = m.kv_a_layernorm(compressed[..., : m.kv_lora_rank])
        shared = rotate(compressed[..., m.kv_lora_rank :], position_embeddings)
        out = self.cache_layer(AttentionLayer).attend(query, latent, shared, self.cache.block, Scoring(scale=m.scaling))
        return m.o_proj(out.flatten(2)), None


def router(original: Any, cache: HybridCache) -> nn.Module:
    """Return a router without choosing among groups if there is only one; several groups are transformers' own business."""
    return UngroupedRouter(original) if original.num_group == 1 else original


# Gemma 3n: several residual streams, inputs for each layer and sparse activations, all of it transformers' own.


def _held_cutoffs(model: PreTrainedModel, cache: HybridCache) -> None:
    """Compute once how many standard deviations above the mean an activation must be: transformers asks a distribution."""
    for layer in decoder_of(model).layers:
        if layer.mlp.activation_sparsity > 0.0:
            deviations = torch.special.ndtri(torch.tensor(layer.mlp.activation_sparsity, dtype=torch.float32)).item()
            replace_method(layer.mlp, "_gaussian_topk", partial(_above_cutoff, deviations))


def _above_cutoff(deviations: float, x: Tensor) -> Tensor:
    """Return how much of x [B, T, intermediate] is above its mean by more than that many standard deviations."""
    centered = x - x.mean(-1, keepdim=True)
    spread = (centered * centered).mean(-1, keepdim=True).sqrt()
    return nn.functional.relu(centered - spread * deviations)


def _real_rope(model: PreTrainedModel, cache: HybridCache) -> None:
    decoder = decoder_of(model)
    decoder.rotary_emb = RealRope(decoder.rotary_emb)


FAMILIES: Mapping[str, Adaptation] = {
    **{name: Adaptation() for name in PLAIN},
    **{name: Adaptation(mixers={"self_attn": in_latent_space}) for name in ("minicpm3", "youtu")},
    "deepseek_v2": Adaptation(mixers={"self_attn": RealLatentAttention}, prepare=_real_rope),
    "gemma3n_text": Adaptation(prepare=_held_cutoffs),
    "glm4_moe_lite": Adaptation(mixers={"self_attn": in_latent_space, "mlp.gate": router}),
    "llama4_text": Adaptation(
        mixers={
            "self_attn": Llama4Attention,
            "feed_forward": lambda m, cache: Llama4Experts(m, cache) if hasattr(m, "experts") else m,
        },
        prepare=_real_rope,
    ),
}
