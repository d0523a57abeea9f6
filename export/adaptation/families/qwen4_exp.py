"""Qwen4: attention with an indexer over pools of keys, and hashed n-grams; its residual streams are transformers' own.

Source: transformers 5.23 ``modeling_qwen4_exp.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from hybridge.cache.hybrid_cache import HybridCache
from hybridge.cache.layers.attention import AttentionLayer
from hybridge.cache.layers.indexed_attention import provide
from hybridge.cache.layers.key_pool import KeyPoolLayer
from hybridge.cache.layers.short_conv import ShortConvLayer
from hybridge.cache.operations.kernels import Scoring
from hybridge.export.adaptation.families.family import Adaptation, StatefulMixer
from hybridge.export.adaptation.families.gated_delta import GatedDeltaNet, text_positions_only
from hybridge.export.checkpoint.decoder import decoder_of
from hybridge.export.pinned.transformers import replace_method
from hybridge.export.pinned.transformers_models import rotate

Rope = tuple[Tensor, Tensor]
"""cos and sin [1, T, D]."""


class IndexedAttention(StatefulMixer):
    """``Qwen4ExpTextAttention``: gated attention over what ``Qwen4ExpTextQSAIndexer`` selects."""

    rotary: tuple[nn.Module]

    def forward(self, hidden_states: Tensor, position_embeddings: Rope, **_: Any) -> tuple[Tensor, None]:
        m: Any = self.original
        if isinstance(self.cache.cache_layers()[m.layer_idx].part("indexer"), KeyPoolLayer):
            self._select(hidden_states, position_embeddings)
        query, gate = m.q_proj(hidden_states).unflatten(-1, (-1, 2 * m.head_dim)).chunk(2, dim=-1)
        key, value = (project(hidden_states).unflatten(-1, (-1, m.head_dim)) for project in (m.k_proj, m.v_proj))
        cos, sin = position_embeddings
        query, key = rotate(m.q_norm(query), m.k_norm(key), cos, sin, unsqueeze_dim=2)
        layer = self.cache_layer(AttentionLayer, "attention")
        out = layer.attend(query, key, value, self.cache.block, Scoring(scale=m.scaling))
        return m.o_proj(out.flatten(2) * gate.flatten(2).sigmoid()), None

    def _select(self, hidden_states: Tensor, rope: Rope) -> None:
        """Pools are plain averages here: all gates alike."""
        m: Any = self.original.indexer
        layer, block = self.cache_layer(KeyPoolLayer, "indexer"), self.cache.block
        layer.finish = self._finish
        projected = m.index_qk_proj(hidden_states)
        query, key = projected[..., : -m.index_head_dim], projected[..., -m.index_head_dim :]
        layer.pool_keys(key, torch.zeros_like(key), key.new_zeros(layer.pool, m.index_head_dim), block)
        query = m.q_layernorm(query.unflatten(-1, (m.index_n_heads, -1)))
        query = rotate(query, cos=rope[0], sin=rope[1], unsqueeze_dim=2)
        weight = torch.ones(*query.shape[:3])
        provide(layer.select(query, weight, m.index_head_dim**-0.5, block), self.original.layer_idx, block)  # type: ignore[arg-type]

    def _finish(self, pooled: Tensor, first: Tensor) -> Tensor:
        """A pool's key is normed, and turned by where the pool begins."""
        m: Any = self.original.indexer
        cos, sin = self.rotary[0](pooled, first[None])
        finished: Tensor = rotate(m.k_layernorm(pooled), cos=cos, sin=sin, unsqueeze_dim=2)
        return finished


class NGrams(StatefulMixer):
    """``Qwen4ExpTextNGramEmbedding``: each token and those before it, as far as the last end of a text, hashed."""

    def forward(self, input_ids: Tensor, past_key_values: None) -> Tensor:
        m: Any = self.original
        T = input_ids.shape[1]
        window = self.cache_layer(ShortConvLayer, "tokens").extend_window(
            (input_ids - m.eos_token_id).float().unsqueeze(2), self.cache.block
        )
        history = window.squeeze(2).long() + m.eos_token_id
        before = [history[:, m.context_len - back : m.context_len - back + T] for back in range(m.ngram_size)]
        for back in range(2, m.ngram_size):
            # What lies behind an end of a text counts as ends.
            before[back] = torch.where(before[back - 1] == m.eos_token_id, m.eos_token_id, before[back])
        hashes, mixed = [], before[0] * m.layer_multipliers[0]
        for back in range(1, m.ngram_size):
            mixed = torch.bitwise_xor(mixed, before[back] * m.layer_multipliers[back])
            heads = slice((back - 1) * m.heads_per_ngram, back * m.heads_per_ngram)
            hashes.append(mixed.unsqueeze(-1) % m.ngram_heads_vocab_sizes[heads] + m.ngram_heads_offsets[heads])
        embedded: Tensor = m.ngram_embedding(torch.cat(hashes, dim=-1)).flatten(-2)
        return embedded


def ngram_layer(original: Any, cache: HybridCache) -> nn.Module:
    """Return ``Qwen4ExpTextPLELayer`` with its dilated convolution over the cache."""
    layer = cache.part(original.layer_idx, ShortConvLayer, "ngram_conv")
    conv = original.conv1d

    def convolve(x: Tensor, _: None) -> Tensor:
        window = layer.extend_window(x, cache.block).transpose(1, 2)
        return F.silu(F.conv1d(window, conv.weight, groups=window.shape[1], dilation=conv.dilation)).transpose(1, 2)

    replace_method(original, "_short_conv", convolve)
    return original  # type: ignore[no-any-return]


def _prepare(model: PreTrainedModel, cache: HybridCache) -> None:
    text_positions_only(model, cache)
    decoder = decoder_of(model)
    for layer in decoder.layers:
        if hasattr(layer, "self_attn"):
            layer.self_attn.rotary = (decoder.rotary_emb,)  # in a tuple, for not to own it


FAMILIES: Mapping[str, Adaptation] = {
    "qwen4_exp_text": Adaptation(
        mixers={
            "linear_attn": GatedDeltaNet,
            "self_attn": IndexedAttention,
            "ple": ngram_layer,
            "ple.ple_embedding": NGrams,
        },
        prepare=_prepare,
    )
}
