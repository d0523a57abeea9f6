"""Lightning attention. Source: transformers 5.23 ``MiniMaxLightningAttention``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from hybridge.cache.hybrid_cache import HybridCache
from hybridge.cache.lightning_attention import LightningAttentionLayer
from hybridge.export.families.family import Adaptation, StatefulMixer


class LightningAttention(StatefulMixer):
    """Linear attention whose heads fade at fixed rates, with an output norm and gate."""

    def forward(self, hidden_states: Tensor, **_: Any) -> tuple[Tensor, None]:
        m: Any = self.original
        B, T = hidden_states.shape[:2]
        heads = m.act_fn(m.qkv_proj(hidden_states)).view(B, T, m.num_attention_heads, 3 * m.head_dim)
        query, key, value = heads.permute(0, 2, 3, 1).split(m.head_dim, dim=2)  # each [B, H, D, T]
        log_decay = -m.slope_rate.view(1, -1, 1).expand(B, -1, T)
        layer = self.cache_layer(LightningAttentionLayer)
        out = m.norm(layer.mix(key, value, log_decay, query, block=self.cache.block).to(hidden_states.dtype))
        return m.out_proj(m.output_gate(hidden_states).sigmoid() * out), None


def one_of_several(mixer: nn.Module, cache: HybridCache) -> nn.Module:
    """MiniMax calls both of its kinds of attention self_attn."""
    return LightningAttention(mixer, cache) if hasattr(mixer, "slope_rate") else mixer


FAMILIES: Mapping[str, Adaptation] = {"minimax": Adaptation(mixers={"self_attn": one_of_several})}
