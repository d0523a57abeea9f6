"""Layers that attend over an earlier layer's keys and values, as Gemma 4's last ones do."""

import pytest
import torch
from tiny import lively, tiny_config, tiny_model

from hybridge.cache.block import CacheSizes
from hybridge.cache.hybrid_cache import HybridCache
from hybridge.cache.layers.attention import SharedAttentionLayer
from hybridge.cache.layers.full_attention import FullAttentionLayer
from hybridge.cache.operations.kernels import CoreKernels, Scoring

SIZES = CacheSizes(max_seq_len=32, prefill_chunk=17, verify_len=5, snapshot_slots=1)


def test_it_has_no_buffers_and_each_of_the_source_is_there_once() -> None:
    source = FullAttentionLayer(SIZES, CoreKernels(), kv_heads=2, head_dim=8)
    cache = HybridCache([source, SharedAttentionLayer(SIZES, CoreKernels(), source=0)], SIZES)
    alone = HybridCache([FullAttentionLayer(SIZES, CoreKernels(), kv_heads=2, head_dim=8)], SIZES)
    assert cache.layout() == alone.layout()
    assert not any(cache.cache_layers()[1].bytes_by_use().values())


@torch.no_grad()
def test_it_sees_what_the_source_sees_and_writes_nothing() -> None:
    """Whatever keys it is handed: transformers hands it the source's, of this block alone."""
    source = FullAttentionLayer(SIZES, CoreKernels(), kv_heads=2, head_dim=8)
    cache = HybridCache([source, SharedAttentionLayer(SIZES, CoreKernels(), source=0)], SIZES)
    shared = cache.part(1, SharedAttentionLayer)
    for tokens in (5, 1, 17):
        block = cache.extend(tokens, torch.tensor([tokens]))
        query, key, value = torch.randn(1, tokens, 4, 8), torch.randn(1, tokens, 2, 8), torch.randn(1, tokens, 2, 8)
        want = source.attend(query, key, value, block, Scoring(scale=0.3))
        other = torch.full_like(key, float("nan"))
        torch.testing.assert_close(shared.attend(query, other, other, block, Scoring(scale=0.3)), want)
        cache.close(block)


@pytest.mark.slow
@torch.no_grad()
def test_transformers_own_forward_moves_the_length_though_the_last_layers_take_nothing_in() -> None:
    model = lively(tiny_model(tiny_config("gemma4_text")))
    cache = HybridCache.from_config(model.config, max_seq_len=64)
    text, start, got = torch.arange(40)[None] * 7 % 131, 0, []
    for tokens in (5, 1, 17, 2, 1, 14):
        got.append(model(text[:, start : start + tokens], past_key_values=cache).logits)
        start += tokens
        assert cache.get_seq_length() == start
    want = model(text, use_cache=False).logits
    torch.testing.assert_close(torch.cat(got, dim=1), want, rtol=1e-4, atol=1e-5 * float(want.abs().max()))
