"""Qwen4: hashed n-grams across blocks and ends of texts, attention without its indexer, and what a config cannot ask for."""

from typing import Any

import pytest
import torch
from tiny import lively, tiny_config, tiny_model
from torch import Tensor

from hybridge.cache import HybridCache
from hybridge.errors import CheckpointError, UnsupportedModelError
from hybridge.export.check.oracle import uncached
from hybridge.export.program.eager import eager_session
from hybridge.runtime.artifact.options import ExportOptions
from hybridge.runtime.binding.session import Session

FAMILY, END, BLOCK = "qwen4_exp_text", 3, 5
TEXT = [END, 7, END, END, 11, 12, 13, END, 14, 15, 16, 17, 18, END, 19, 20, END, 21, END, 22]
"""Ends of texts at the edges of blocks, inside them, alone and in a row."""


def new_cache(family: str = FAMILY, max_seq_len: int = 40, **overrides: Any) -> HybridCache:
    return HybridCache.from_config(tiny_config(family, **overrides), max_seq_len=max_seq_len)


def in_blocks(session: Session, text: list[int]) -> Tensor:
    """Logits of a text that goes in by verified blocks, each accepted in two parts, and so verified twice."""
    rows = []
    for start in range(0, len(text), BLOCK):
        session.verify(text[start : start + BLOCK])
        session.commit(2)
        logits = session.verify([*text[start + 2 : start + BLOCK], 0, 0])
        session.commit(BLOCK - 2)
        rows.append(logits[: BLOCK - 2])
    return torch.cat([torch.as_tensor(each) for each in rows])


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [{"ngram_size": 2}, {"ngram_size": 3}, {"ngram_size": 4, "ple_embed_dim": 36}], ids=str)
@pytest.mark.parametrize("end", [END, [END, 9], 0])
def test_ngrams_reach_back_to_the_last_end_of_a_text(sizes: dict[str, int], end: int | list[int]) -> None:
    """From the start and after a reset, when the ids before the first token are ends again."""
    model = lively(tiny_model(tiny_config(FAMILY, eos_token_id=end, **sizes)))
    session = eager_session(model, ExportOptions(max_seq_len=40, prefill_chunk=7, verify_len=BLOCK))
    want = torch.as_tensor(uncached(model)(TEXT))
    read = [start + i for start in range(0, len(TEXT), BLOCK) for i in range(2, BLOCK)]
    for _ in range(2):
        torch.testing.assert_close(in_blocks(session, TEXT), want[read], rtol=1e-4, atol=1e-5)
        session.reset()


@pytest.mark.slow
@pytest.mark.parametrize(("max_seq_len", "kind"), [(11, "full_attention"), (12, "indexed_attention + key_pool")])
def test_an_indexer_that_would_select_everything_keeps_nothing(max_seq_len: int, kind: str) -> None:
    """Budget 9 in pools of 3: a text of 12 tokens is the first with more pools than are selected."""
    assert new_cache(max_seq_len=max_seq_len).cache_layers()[1].kind == kind
    model = lively(tiny_model(tiny_config(FAMILY)))
    session = eager_session(model, ExportOptions(max_seq_len=max_seq_len, prefill_chunk=max_seq_len, verify_len=BLOCK))
    text = list(range(20, 20 + max_seq_len))
    want = torch.as_tensor(uncached(model)(text))[-1]
    torch.testing.assert_close(torch.as_tensor(session.prefill(text)).flatten(), want, rtol=1e-4, atol=1e-5)


INDEXER = ("n_heads", "kv_heads", "head_dim", "budget", "compress_ratio")


@pytest.mark.parametrize(
    ("overrides", "error", "said"),
    [
        (dict.fromkeys(f"indexer_{each}" for each in INDEXER), CheckpointError, "indexer_budget = None"),
        ({"indexer_compress_ratio": 1}, UnsupportedModelError, "indexer_compress_ratio = 1, .* lower max_seq_len"),
        ({"ple_conv_kernel_size": 1}, UnsupportedModelError, "ple_conv_kernel_size = 1, expected 2 or more"),
        ({"vocab_size": 2**24 + 1}, UnsupportedModelError, "vocab_size = 16777217 and ple_layer_ids"),
    ],
)
def test_what_the_states_cannot_follow_is_refused_by_name(overrides: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        new_cache(**overrides)


@pytest.mark.parametrize("overrides", [{"ple_conv_kernel_size": 2}, {"vocab_size": 2**24}], ids=str)
def test_the_last_that_the_states_can_follow_is_taken(overrides: dict[str, Any]) -> None:
    assert new_cache(**overrides).cache_layers()


GATED_DELTA = [FAMILY, "olmo_hybrid", "qwen3_5_moe_text", "qwen3_next"]


@pytest.mark.parametrize("family", GATED_DELTA)
@pytest.mark.parametrize("kernel", [0, 1])
def test_a_convolution_without_a_state_is_refused(family: str, kernel: int) -> None:
    """A runtime's operators abort the process over a tensor without elements."""
    with pytest.raises(UnsupportedModelError, match=f"linear_conv_kernel_dim = {kernel}, expected 2 or more"):
        new_cache(family, linear_conv_kernel_dim=kernel)


@pytest.mark.parametrize("family", GATED_DELTA)
@pytest.mark.parametrize("heads", [(2, 3), (0, 4), (4, 2), (2, 0)])
def test_value_heads_share_the_key_heads_evenly(family: str, heads: tuple[int, int]) -> None:
    key_heads, value_heads = heads
    with pytest.raises(CheckpointError, match=f"linear_num_key_heads = {key_heads} and linear_num_value_heads = {value_heads}"):
        new_cache(family, linear_num_key_heads=key_heads, linear_num_value_heads=value_heads)


@pytest.mark.parametrize("heads", [(1, 1), (1, 3)])
def test_one_key_head_is_enough(heads: tuple[int, int]) -> None:
    key_heads, value_heads = heads
    cache = new_cache("qwen3_next", linear_num_key_heads=key_heads, linear_num_value_heads=value_heads)
    assert any("recurrent_state" in name for name, _ in cache.named_buffers())
