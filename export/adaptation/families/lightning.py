"""Lightning attention. Source: transformers 5.23 ``MiniMaxLightningAttention``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from hybridge.cache.hybrid_cache import HybridCache
from hybridge.cache.layers.lightning_attention import LightningAttentionLayer
from hybridge.cache.recurrences.state_space import LinearAttention
from hybridge.export.adaptation.families.family import Adaptation, StatefulMixer


class LightningAttention(StatefulMixer):
    """Linear attention whose heads fade at fixed rates, with an output norm and gate."""

    def __init__(self, original: nn.Module, cache: HybridCache) -> None:
        super().__init__(original, cache)
        m: Any = original
        # A parameter, because what depends on buffers is not folded: they are state.
        self.rate = nn.Parameter(-m.slope_rate.detach().flatten(), requires_grad=False)
        self.cache_layer(LightningAttentionLayer).weights = self._weights

    def _weights(self) -> LinearAttention:
        return LinearAttention(rate=self.rate, groups=len(self.rate), by_head=True)

    def forward(self, hidden_states: Tensor, **_: Any) -> tuple[Tensor, None]:
        m: Any = self.original
        mixed = m.act_fn(m.qkv_proj(hidden_states))
        out = self.cache_layer(LightningAttentionLayer).mix(mixed, block=self.cache.block)
        out = m.norm(out.to(hidden_states.dtype))
        return m.out_proj(m.output_gate(hidden_states).sigmoid() * out), None


def one_of_several(mixer: nn.Module, cache: HybridCache) -> nn.Module:
    """Return the mixer for the kind of attention: MiniMax calls both of them self_attn."""
    return LightningAttention(mixer, cache) if hasattr(mixer, "slope_rate") else mixer


FAMILIES: Mapping[str, Adaptation] = {"minimax": Adaptation(mixers={"self_attn": one_of_several})}
