"""Keys and values of 8 and 16 bits: sessions against the uncached model with rounded ones, refusals, transformers' forward."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Literal

import pytest
import torch
from tiny import lively, tiny_config, tiny_model
from torch import Tensor
from zoo import by_kind

from hybridge.cache.block import CacheSizes
from hybridge.cache.hybrid_cache import HybridCache
from hybridge.cache.layers.attention import AttentionLayer, QuantizedAttentionLayer
from hybridge.cache.operations.kernels import CoreKernels, Kernels, Scoring
from hybridge.cache.operations.quantized_rows import QuantizedRows
from hybridge.errors import UsageError
from hybridge.export.check.oracle import round_keys, uncached
from hybridge.export.check.validate import ROUNDED_KEYS_TOLERANCE, validate
from hybridge.export.kernel_sets.hybridge import HybridgeKernels
from hybridge.export.program.build import HALF_KEYS, build_cache
from hybridge.export.program.eager import eager_session
from hybridge.runtime.artifact.options import ExportOptions

OPTIONS = ExportOptions(max_seq_len=61, prefill_chunk=17, verify_len=5, kernels="hybridge", kv_cache="int8")
FAMILIES = {
    "gated attention": "qwen3_5_text",
    "soft caps": "gemma2",
    "sinks": "gpt_oss",
    "shared keys and values": "gemma4_text",
    "beside a state space": "falcon_h1",
    "one attention in many layers": "zamba2",
    "attention as wide as a convolution": "zaya",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kv_cache", "what"),
    [
        *(("int8", each) for each in FAMILIES),
        *(
            pytest.param("float16", each, marks=() if each in ("gated attention", "sinks") else pytest.mark.thorough)
            for each in FAMILIES
        ),
    ],
)
def test_a_session_is_the_model_with_rounded_keys_and_values(what: str, kv_cache: Literal["int8", "float16"]) -> None:
    model, options = lively(tiny_model(tiny_config(FAMILIES[what]))), replace(OPTIONS, kv_cache=kv_cache)
    session = eager_session(model, options)
    original = uncached(model)(range(40))
    round_keys(model, options)
    oracle = uncached(model)
    report = validate(
        session, oracle, programs=3, prompts=1, new_tokens=8, seed=0, notify=lambda done, total: None, same_bits=None
    )
    assert report.passed, report
    assert report.mean_relative < 2e-5, report
    assert not torch.allclose(oracle(range(40)), original, rtol=1e-6, atol=1e-6), "nothing was rounded"


@pytest.mark.slow
@pytest.mark.parametrize("family", by_kind(HALF_KEYS))
def test_families_with_float16_keys_by_default_do_not_mind(family: str) -> None:
    no_window = {"mistral": None, "phi3": None, "ministral": 200}  # these have no full attention otherwise
    own = {"sliding_window": no_window[family]} if family in no_window else {}
    model = lively(tiny_model(tiny_config(family, **own)))
    before = uncached(model)(range(3, 43))
    round_keys(model, replace(OPTIONS, kv_cache="float16"))
    error = (uncached(model)(range(3, 43)) - before).abs().max() / before.abs().max()
    assert 0 < error < ROUNDED_KEYS_TOLERANCE


@pytest.mark.parametrize("family", ["mamba2", "recurrent_gemma"])
def test_a_model_without_full_attention_has_nothing_to_round(family: str) -> None:
    with pytest.raises(UsageError, match="--kv-cache int8 is for full attention"):
        build_cache(tiny_config(family), OPTIONS)


def test_only_kernels_of_our_own_can_do_it() -> None:
    options = ExportOptions(max_seq_len=61, kv_cache="int8", kernels="llm")
    with pytest.raises(UsageError, match="--kv-cache int8 needs --kernels hybridge, not llm"):
        build_cache(tiny_config("qwen3"), options)


def one_layer(kernels: Kernels, max_seq_len: int) -> tuple[HybridCache, QuantizedAttentionLayer]:
    sizes = CacheSizes(max_seq_len=max_seq_len, prefill_chunk=17, verify_len=5)
    layer = QuantizedAttentionLayer(sizes, kernels, kv_heads=2, head_dim=22, value_dim=33)
    return HybridCache([layer], sizes), layer


def run(cache: HybridCache, layer: AttentionLayer, tokens: int, count: int, rng: torch.Generator) -> Tensor:
    block = cache.extend(tokens, torch.tensor([count]))
    query, key, value = (torch.randn(1, tokens, heads, dim, generator=rng) for heads, dim in ((6, 22), (2, 22), (2, 33)))
    out = layer.attend(query, key, value, block, Scoring(scale=0.3))
    cache.close(block)
    return out


def raw(rows: QuantizedRows, below: int) -> list[Tensor]:
    """Return what is kept of the rows below a position, with NaN as a number."""
    ones = [torch.ones_like(scales) for scales in (rows.key_scales, rows.value_scales)]
    quanta = QuantizedRows(keys=rows.keys, key_scales=ones[0], values=rows.values, value_scales=ones[1]).dense(22, 33)
    scales = (each.transpose(2, 3).flatten(1, 2).nan_to_num(-1.0) for each in (rows.key_scales, rows.value_scales))
    return [each[:, :below].clone() for each in (*quanta, *scales)]


@pytest.mark.parametrize("kernels", [CoreKernels(), HybridgeKernels()], ids=["core", "hybridge"])
@pytest.mark.parametrize("tokens", [1, 5, 17])
@torch.no_grad()
def test_a_refused_block_changes_no_row(tokens: int, kernels: Kernels) -> None:
    cache, layer = one_layer(kernels, max_seq_len=20)
    rng = torch.Generator().manual_seed(0)
    run(cache, layer, 17, 17, rng)
    run(cache, layer, 5, 3, rng)
    before = raw(layer.rows, 20)
    run(cache, layer, tokens, 1, rng)
    assert int(cache.length) == 20
    assert all(map(torch.equal, raw(layer.rows, 20), before))


@torch.no_grad()
def test_what_lies_behind_the_length_is_not_seen() -> None:
    """Whatever the memory holds at first, NaN in scales included."""
    outs = []
    for fill in (-128, 127):
        cache, layer = one_layer(HybridgeKernels(), max_seq_len=90)
        for rows in (layer.keys, layer.values):
            rows.fill_(fill)
        for scales in (layer.key_scales, layer.value_scales):
            scales.fill_(float("nan") if fill > 0 else 1e30)
        rng, choose = torch.Generator().manual_seed(0), random.Random(0)
        outs.append(torch.cat([run(cache, layer, 17, choose.randint(1, 17), rng)[:, :1] for _ in range(6)]))
    assert outs[0].isfinite().all()
    torch.testing.assert_close(*outs, rtol=0, atol=0)


@torch.no_grad()
@pytest.mark.parametrize("kv_cache", ["int8", "float16"])
def test_transformers_own_forward_takes_them(kv_cache: Literal["int8", "float16"]) -> None:
    model = lively(tiny_model(tiny_config("qwen3")))
    cache = HybridCache.from_config(model.config, max_seq_len=61, kv_dtype=getattr(torch, kv_cache))
    text, got, start = torch.arange(40)[None] * 7 % 131, [], 0
    for tokens in (5, 1, 17, 2, 15):
        got.append(model(text[:, start : start + tokens], past_key_values=cache).logits)
        start += tokens
    round_keys(model, replace(OPTIONS, kv_cache=kv_cache))
    want = uncached(model)(text[0].tolist())
    torch.testing.assert_close(torch.cat(got, dim=1)[0], want, rtol=0, atol=2e-3 * float(want.abs().max()))
