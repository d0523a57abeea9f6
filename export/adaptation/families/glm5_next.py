"""GLM-5.3-Flash: Kimi delta attention beside latent attention with an indexer; its residual streams are transformers' own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

import hybridge.export.checkpoint.glm5_next_text  # noqa: F401  transformers has no class for the text model with its head
from hybridge.cache.hybrid_cache import HybridCache
from hybridge.cache.layers.indexed_attention import provide
from hybridge.cache.layers.key_pool import KeyPoolLayer
from hybridge.export.adaptation.families.family import Adaptation, StatefulMixer
from hybridge.export.adaptation.families.kimi_delta import KimiDeltaAttention, mixer, router
from hybridge.export.pinned.transformers import replace_method


class KeyPoolIndexer(StatefulMixer):
    """Selects for its layer's attention, and for that of the next layer. Source: transformers 5.23 ``Glm5NextTextIndexer``."""

    def forward(self, hidden_states: Tensor, q_resid: Tensor, **_: Any) -> Tensor:
        m: Any = self.original
        block, layer = self.cache.block, self.cache_layer(KeyPoolLayer, "indexer")
        gate = F.linear(hidden_states, m.index_kpool_compress_gate)
        layer.pool_keys(m.k_norm(m.wk(hidden_states)), gate, m.index_kpool_compress_ape, block)
        query = m.wq_b(q_resid).unflatten(-1, (m.n_heads, m.head_dim))
        weight = m.weights_proj(hidden_states) * m.n_heads**-0.5
        provide(layer.select(query, weight, m.softmax_scale, block), m.layer_idx, block)
        return hidden_states  # transformers passes it on as the selection, and only checks that there is one


class SelectsAll(nn.Module):
    """Stands for an indexer that decides nothing."""

    def forward(self, hidden_states: Tensor, **_: Any) -> Tensor:
        return hidden_states


def attention(original: Any, cache: HybridCache) -> nn.Module:
    """Return the mixer as in Kimi Linear; the selection reaches the cache layer through the block, not as a mask."""
    if not hasattr(original, "forget_gate"):  # else it is a recurrent layer
        replace_method(original, "build_attention_mask_from_topk", lambda **_: None)
    return mixer(KimiDeltaAttention, original, cache)


def indexer(original: Any, cache: HybridCache) -> nn.Module:
    part = cache.cache_layers()[original.layer_idx].part("indexer")
    return KeyPoolIndexer(original, cache) if isinstance(part, KeyPoolLayer) else SelectsAll()


FAMILIES: Mapping[str, Adaptation] = {
    "glm5_next_text": Adaptation(mixers={"self_attn": attention, "self_attn.indexer": indexer, "mlp.gate": router})
}
