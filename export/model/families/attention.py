"""Adapt families with nothing but attention: most need no more than ``adapt`` does through transformers' own hook."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from hybridge.cache.hybrid_cache import HybridCache
from hybridge.cache.layers.attention import AttentionLayer
from hybridge.cache.operations.kernels import Scoring
from hybridge.export.model.families.family import Adaptation, StatefulMixer
from hybridge.export.source.text_model import decoder_of

PLAIN = (
    "cohere2", "exaone4", "gemma2", "gemma3_text", "gemma4_text", "gemma4_unified_text", "gpt_oss", "llama", "ministral",
    "mistral", "olmo3", "phi3", "qwen2", "qwen3", "qwen3_moe", "smollm3",
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


def _real_rope(model: PreTrainedModel, cache: HybridCache) -> None:
    decoder = decoder_of(model)
    decoder.rotary_emb = RealRope(decoder.rotary_emb)


FAMILIES: Mapping[str, Adaptation] = {
    **{name: Adaptation() for name in PLAIN},
    "llama4_text": Adaptation(
        mixers={
            "self_attn": Llama4Attention,
            "feed_forward": lambda m, cache: Llama4Experts(m, cache) if hasattr(m, "experts") else m,
        },
        prepare=_real_rope,
    ),
}
