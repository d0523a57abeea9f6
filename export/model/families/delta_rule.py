"""Adapt families with delta rules: gated delta nets, Kimi delta attention, of which two select keys by an indexer, RWKV-7."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

import hybridge.export.source.text_model  # noqa: F401  transformers has no class for the text model with its head
from hybridge.cache.hybrid_cache import HybridCache
from hybridge.cache.layers.attention import AttentionLayer
from hybridge.cache.layers.indexed_attention import KeyPoolLayer, provide
from hybridge.cache.layers.recurrent import GatedDeltaNetLayer, KimiDeltaAttentionLayer, Rwkv7Layer
from hybridge.cache.layers.short_conv import DelayLayer, ShortConvLayer
from hybridge.cache.operations.kernels import Scoring
from hybridge.cache.recurrences.gated_delta_rule import DeltaGates
from hybridge.export.model.families.attention import in_latent_space, router
from hybridge.export.model.families.family import Adaptation, Mixer, StatefulMixer, short_convolution
from hybridge.export.pinned.transformers import replace_method, rotate
from hybridge.export.source.text_model import decoder_of


class GatedDeltaNet(StatefulMixer):
    """Qwen3.5's linear attention. Source: transformers 5.23 ``Qwen3_5GatedDeltaNet``."""

    def __init__(self, original: Any, cache: HybridCache) -> None:
        super().__init__(original, cache)
        self.cache_layer(GatedDeltaNetLayer, "mixer").convolution = short_convolution(original.conv1d, original.activation)

    def forward(self, hidden_states: Tensor, **_: Any) -> Tensor:
        m = self.original
        mixed, gate, b, a = self._project(hidden_states)
        rate, bias = m.A_log.float().exp(), m.dt_bias.float()
        gates = DeltaGates(decay=a, beta=b, rate=rate, bias=bias, strength=self.strength)
        out = self.cache_layer(GatedDeltaNetLayer, "mixer").mix(mixed, gates, block=self.cache.block)
        return self._gated(out, gate)

    @property
    def strength(self) -> float:
        """Return the largest beta."""
        return 1.0

    def _gated(self, out: Tensor, gate: Tensor) -> Tensor:
        """Apply norm, gate and projection to the rule's output [B, T, Hv, V]."""
        m = self.original
        projected: Tensor = m.out_proj(m.norm(out, gate.reshape(out.shape)).flatten(2))
        return projected

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Map x [B, T, hidden] to conv input [B, T, C], gate z, and b, a [B, T, Hv]."""
        m = self.original
        return m.in_proj_qkv(x), m.in_proj_z(x), m.in_proj_b(x), m.in_proj_a(x)


class PackedGatedDeltaNet(GatedDeltaNet):
    """Qwen3-Next: query, key, value and gate in one projection, interleaved by key head; likewise b and a.

    Source: transformers 5.23 ``Qwen3NextGatedDeltaNet``.
    """

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        m = self.original
        query, key, value, z, b, a = m.fix_query_key_value_ordering(m.in_proj_qkvz(x), m.in_proj_ba(x))
        mixed = torch.cat([part.flatten(2) for part in (query, key, value)], dim=-1)
        return mixed, z, b, a


class OlmoGatedDeltaNet(GatedDeltaNet):
    """OLMo Hybrid: separate projections, other names, and beta up to 2 if the state may change its sign.

    Source: transformers 5.23 ``OlmoHybridGatedDeltaNet``.
    """

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        m = self.original
        mixed = torch.cat([m.q_proj(x), m.k_proj(x), m.v_proj(x)], dim=-1)
        return mixed, m.g_proj(x), m.b_proj(x), m.a_proj(x)

    @property
    def strength(self) -> float:
        """Return the largest beta; beyond 1 the state may turn its sign."""
        return 2.0 if self.original.allow_neg_eigval else 1.0

    def _gated(self, out: Tensor, gate: Tensor) -> Tensor:
        m = self.original
        projected: Tensor = m.o_proj(m.o_norm(out, gate.reshape(out.shape)).flatten(2))
        return projected


def text_positions_only(model: PreTrainedModel, cache: HybridCache) -> None:
    """Keep one position of a text's three: Qwen3.5 mixes the frequencies of time, height and width, equal for text.

    Rows of pictures keep all three, by a choice that lowers: transformers overwrites slices.
    """
    rotary = decoder_of(model).rotary_emb

    def mixed(freq: Tensor) -> Tensor:
        rope, found = cache.block.rope, freq[0]
        if rope is not None and rope.dim() > 1:
            place = torch.arange(found.shape[-1])
            for axis in (1, 2):
                found = torch.where((place % 3 == axis) & (place < 3 * rotary.mrope_section[axis]), freq[axis], found)
        return torch.cat((found, found), dim=-1)

    replace_method(rotary, "recomposition_frequencies", mixed)


QWEN3_5 = Adaptation(mixers={"linear_attn": GatedDeltaNet}, prepare=text_positions_only)


# Kimi delta attention and latent attention: Kimi Linear and Ling 3.


class KimiDeltaAttention(StatefulMixer):
    """Kimi Linear's attention with a recurrent state. Source: transformers 5.23 ``KimiLinearDeltaAttention``."""

    def __init__(self, original: Any, cache: HybridCache) -> None:
        super().__init__(original, cache)
        self.cache_layer(KimiDeltaAttentionLayer).convolution = short_convolution(original.conv1d, original.activation)

    def forward(self, hidden_states: Tensor, **_: Any) -> Tensor:
        m = self.original
        mixed = torch.cat([m.q_proj(hidden_states), m.k_proj(hidden_states), m.v_proj(hidden_states)], dim=-1)
        out = self.cache_layer(KimiDeltaAttentionLayer).mix(mixed, self._gates(hidden_states), block=self.cache.block)
        gate = self._output_gate(hidden_states).unflatten(-1, (m.num_heads, m.head_dim))
        projected: Tensor = m.o_proj(m.o_norm(out, gate).flatten(2))
        return projected

    def _output_gate(self, x: Tensor) -> Tensor:
        """Map x [B, T, hidden] to [B, T, H D]."""
        m = self.original
        gate: Tensor = m.g_b_proj(m.g_a_proj(x))
        return gate

    def _gates(self, x: Tensor) -> DeltaGates:
        m = self.original
        gate = m.forget_gate
        rate, bias = gate.A_log.float().exp().flatten(), gate.dt_bias.float()
        return DeltaGates(decay=self._decay(gate, x), beta=m.b_proj(x), rate=rate, bias=bias, floor=self._floor(gate))

    def _decay(self, gate: Any, x: Tensor) -> Tensor:
        """Map x [B, T, hidden] to [B, T, H D]."""
        decay: Tensor = gate.f_b_proj(gate.f_a_proj(x))
        return decay

    def _floor(self, gate: Any) -> float | None:
        """Return the lowest log decay, for models that have one."""
        return getattr(gate, "safe_gate_lower_bound", None)


class FullRankGated(KimiDeltaAttention):
    """Ling 3's, with one projection for each of its gates. Source: transformers 5.23 ``BailingHybridDeltaAttention``."""

    def _output_gate(self, x: Tensor) -> Tensor:
        m = self.original
        gate: Tensor = m.g_proj(x)
        return gate

    def _decay(self, gate: Any, x: Tensor) -> Tensor:
        decay: Tensor = gate.f_proj(x)
        return decay

    def _floor(self, gate: Any) -> float | None:
        return gate.lower_bound if gate.safe_gate else None


def mixer(delta: Mixer, original: Any, cache: HybridCache) -> nn.Module:
    """Return ``delta`` for recurrent layers, transformers' own attention for the others: both are called ``self_attn``."""
    return delta(original, cache) if hasattr(original, "forget_gate") else in_latent_space(original, cache)


# GLM-5.3-Flash: Kimi delta attention beside latent attention with an indexer; its residual streams are
# transformers' own.


class KeyPoolIndexer(StatefulMixer):
    """Selects for its layer's attention, and for that of the next layer. Source: transformers 5.23 ``Glm5NextTextIndexer``."""

    def forward(self, hidden_states: Tensor, q_resid: Tensor, **_: Any) -> Tensor:
        m = self.original
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


# Qwen4: attention with an indexer over pools of keys, and hashed n-grams; its residual streams are transformers' own.
#
# Source: transformers 5.23 ``modeling_qwen4_exp.py``.


Rope = tuple[Tensor, Tensor]
"""cos and sin [1, T, D]."""


class IndexedAttention(StatefulMixer):
    """``Qwen4ExpTextAttention``: gated attention over what ``Qwen4ExpTextQSAIndexer`` selects."""

    rotary: tuple[nn.Module]

    def forward(self, hidden_states: Tensor, position_embeddings: Rope, **_: Any) -> tuple[Tensor, None]:
        m = self.original
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
        """Select with pools that are plain averages: all gates are alike."""
        m = self.original.indexer
        layer, block = self.cache_layer(KeyPoolLayer, "indexer"), self.cache.block
        layer.finish = self._finish
        projected = m.index_qk_proj(hidden_states)
        query, key = projected[..., : -m.index_head_dim], projected[..., -m.index_head_dim :]
        layer.pool_keys(key, torch.zeros_like(key), key.new_zeros(layer.pool, m.index_head_dim), block)
        query = m.q_layernorm(query.unflatten(-1, (m.index_n_heads, -1)))
        query = rotate(query, cos=rope[0], sin=rope[1], unsqueeze_dim=2)
        weight = torch.ones(*query.shape[:3])
        provide(layer.select(query, weight, m.index_head_dim**-0.5, block), self.original.layer_idx, block)

    def _finish(self, pooled: Tensor, first: Tensor) -> Tensor:
        """RMS-normalize the pooled key and apply RoPE at the pool's first position."""
        m = self.original.indexer
        cos, sin = self.rotary[0](pooled, first[None])
        finished: Tensor = rotate(m.k_layernorm(pooled), cos=cos, sin=sin, unsqueeze_dim=2)
        return finished


class NGrams(StatefulMixer):
    """``Qwen4ExpTextNGramEmbedding``: each token and those before it, as far as the last end of a text, hashed."""

    def forward(self, input_ids: Tensor, past_key_values: None) -> Tensor:
        m = self.original
        T = input_ids.shape[1]
        window = self.cache_layer(ShortConvLayer, "tokens").extend_window(
            (input_ids - m.eos_token_id).float().unsqueeze(2), self.cache.block
        )
        history = window.squeeze(2).long() + m.eos_token_id
        before = [history[:, m.context_len - back : m.context_len - back + T] for back in range(m.ngram_size)]
        for back in range(2, m.ngram_size):
            # What lies after an end of a text counts as ends.
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


# RWKV-7, whose model is hybridge's own: ``export/source/rwkv7.py``.


def shifted(name: str, original: Any, cache: HybridCache) -> nn.Module:
    """Return a module that sees the token before it in the cache's part of that name."""
    layer = cache.part(original.layer_idx, DelayLayer, name)
    original.previous = lambda x: layer.mix(x, block=cache.block)
    return original  # type: ignore[no-any-return]


def rwkv7_attention(original: Any, cache: HybridCache) -> nn.Module:
    """Return the mixer over the cache's state."""
    layer = cache.part(original.layer_idx, Rwkv7Layer, "mixer")
    original.rule = lambda query, inputs: layer.mix(query, inputs, block=cache.block)
    return shifted("shift", original, cache)


FAMILIES: Mapping[str, Adaptation] = {
    "olmo_hybrid": Adaptation(mixers={"linear_attn": OlmoGatedDeltaNet}),
    "qwen3_5_moe_text": QWEN3_5,
    "qwen3_5_text": QWEN3_5,
    "qwen3_next": Adaptation(mixers={"linear_attn": PackedGatedDeltaNet}),
    "bailing_hybrid": Adaptation(mixers={"self_attn": partial(mixer, FullRankGated), "mlp.gate": router}),
    "kimi_linear": Adaptation(mixers={"self_attn": partial(mixer, KimiDeltaAttention), "mlp.gate": router}),
    "glm5_next_text": Adaptation(mixers={"self_attn": attention, "self_attn.indexer": indexer, "mlp.gate": router}),
    "rwkv7": Adaptation(mixers={"attn": rwkv7_attention, "ffn": partial(shifted, "ffn_shift")}),
    "qwen4_exp_text": Adaptation(
        mixers={"linear_attn": GatedDeltaNet, "self_attn": IndexedAttention, "ple": ngram_layer, "ple.ple_embedding": NGrams},
        prepare=_prepare,
    ),
}
