"""The context of a model that nobody chose one for, and what its rows cost before they are written."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from process_memory import anonymous_bytes, needs_proc
from tiny import tiny_config

from hybridge.cache.families import own_context
from hybridge.cache.hybrid_cache import HybridCache
from hybridge.export.program import build
from hybridge.export.program.build import resolve_state
from hybridge.runtime.artifact.options import ExportOptions

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
LONG = {"rope_type": "longrope", "original_max_position_embeddings": 4096}
OWN: dict[str, tuple[dict[str, Any], int]] = {
    "SmolLM2": ({"max_position_embeddings": 8192}, 8192),
    "Qwen3.5": ({"max_position_embeddings": 262144}, 32768),
    "Phi 3, whose angles change": ({"max_position_embeddings": 131072, "rope_parameters": LONG}, 4096),
    "a rope that is stretched": ({"max_position_embeddings": 4096, "rope_parameters": YARN}, 16384),
    "a rope by layer types": ({"max_position_embeddings": 131072, "rope_parameters": {"full": LONG, "sliding": {}}}, 4096),
    "Mistral, with a large window": ({"max_position_embeddings": 32768, "sliding_window": 4096}, 4096),
    "Gemma 3, with a small one": ({"max_position_embeddings": 32768, "sliding_window": 512}, 32768),
    "Llama 4, with chunks": ({"max_position_embeddings": 10485760, "attention_chunk_size": 8192}, 8192),
    "Mamba, without positions": ({}, 32768),
}


@pytest.mark.parametrize("what", OWN)
def test_a_context_is_what_the_model_takes(what: str) -> None:
    config, tokens = OWN[what]
    assert own_context(SimpleNamespace(model_type="any", **config)) == tokens


def test_a_context_is_chosen_for_an_export(monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny_config("llama", max_position_embeddings=20000)
    options = ExportOptions(quantize="8da4w")
    resolved = resolve_state(options, config)
    assert (resolved.max_seq_len, resolved.kv_cache) == (20000, "float16")
    assert resolve_state(ExportOptions(max_seq_len=100), config) == ExportOptions(max_seq_len=100), "float32 stays exact"
    assert resolve_state(ExportOptions(quantize="8da4w", kv_cache="float32"), config).kv_cache == "float32"
    assert resolve_state(ExportOptions(kernels="llm"), config).max_seq_len == 2048
    assert resolve_state(options, tiny_config("mamba2")).kv_cache == "auto", "it has nothing to round"
    with torch.device("meta"):
        size = HybridCache.from_config(config, max_seq_len=20000, kv_dtype=torch.float16).state_bytes()
    monkeypatch.setattr(build, "memory_bytes", lambda: 3 * size)
    assert resolve_state(options, config).max_seq_len == 10000, "a quarter of the memory holds half of it"


@needs_proc
def test_rows_take_memory_when_they_are_written() -> None:
    before = anonymous_bytes()
    cache = HybridCache.from_config(tiny_config("llama"), max_seq_len=1 << 20)
    assert cache.state_bytes() > 200 << 20
    assert anonymous_bytes() - before < 20 << 20
