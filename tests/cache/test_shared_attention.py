"""Layers that attend over an earlier layer's keys and values, as Gemma 4's last ones do."""

import dataclasses

import pytest
import torch
from tiny import lively, tiny_config, tiny_model

from hybridge.cache.block import Block, CacheSizes
from hybridge.cache.hybrid_cache import HybridCache
from hybridge.cache.layers.attention import AttentionLayer, FullAttentionLayer, QuantizedAttentionLayer, SharedAttentionLayer
from hybridge.cache.layers.sliding_attention import SlidingAttentionLayer
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


LOOKED_AT = {
    "full": lambda sizes: FullAttentionLayer(sizes, CoreKernels(), kv_heads=2, head_dim=8),
    "int8": lambda sizes: QuantizedAttentionLayer(sizes, CoreKernels(), kv_heads=2, head_dim=8),
    "window": lambda sizes: SlidingAttentionLayer(sizes, CoreKernels(), kv_heads=2, head_dim=8, window=6),
}


@pytest.mark.parametrize("kind", LOOKED_AT)
@torch.no_grad()
def test_a_look_sees_what_the_last_token_saw_and_takes_nothing_in(kind: str) -> None:
    cache = HybridCache([LOOKED_AT[kind](SIZES)], SIZES)
    layer = cache.part(0, AttentionLayer)
    for tokens in (5, 17, 3, 1):
        query, key, value = torch.randn(1, tokens, 4, 8), torch.randn(1, tokens, 2, 8), torch.randn(1, tokens, 2, 8)
        block = cache.extend(tokens, torch.tensor([tokens]))
        want = layer.attend(query, key, value, block, Scoring(scale=0.3))[:, -1:]
        cache.close(block)
        staged = cache.speculate(5)
        layer.attend(*(torch.full((1, 5, heads, 8), 9.0) for heads in (4, 2, 2)), staged, Scoring(scale=0.3))
        before = {name: each.clone() for name, each in cache.named_buffers()}
        last = Block(start=cache.length - 1, count=torch.ones(1, dtype=torch.long), length=1)
        torch.testing.assert_close(layer.attend_only(query[:, -1:], last, Scoring(scale=0.3)), want)
        assert all(torch.equal(each, before[name]) for name, each in cache.named_buffers())


@torch.no_grad()
def test_a_drafter_sees_a_position_behind_the_window() -> None:
    """Also once a block of the longest verify was staged over the ring."""
    sizes = dataclasses.replace(SIZES, before_window=1)
    narrow, wide = (SlidingAttentionLayer(sizes, CoreKernels(), kv_heads=2, head_dim=8, window=6 + i) for i in range(2))
    scoring = Scoring(scale=0.3)
    for start, tokens in ((0, 5), (5, 17), (22, 1)):
        query, key, value = torch.randn(1, tokens, 4, 8), torch.randn(1, tokens, 2, 8), torch.randn(1, tokens, 2, 8)
        block = Block(start=torch.tensor([start]), count=torch.tensor([tokens]), length=tokens)
        narrow.attend(query, key, value, block, scoring)
        want = wide.attend(query, key, value, block, scoring)[:, -1:]
        staged = Block(start=torch.tensor([start + tokens]), count=torch.tensor([5]), length=5, tentative=True)
        narrow.attend(*(torch.full((1, 5, heads, 8), 9.0) for heads in (4, 2, 2)), staged, scoring)
        last = Block(start=staged.start - 1, count=torch.tensor([1]), length=1)
        torch.testing.assert_close(narrow.attend_only(query[:, -1:], last, scoring), want)


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
