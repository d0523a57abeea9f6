"""GLM-5.3-Flash: the text model with its head, and what its config can and cannot ask for."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import lively, tiny_config, tiny_model
from transformers.models.glm5_next.configuration_glm5_next import Glm5NextConfig
from transformers.models.glm5_next.modeling_glm5_next import Glm5NextForConditionalGeneration

from hybridge.cache import HybridCache
from hybridge.errors import CheckpointError, UnsupportedModelError
from hybridge.export.check.oracle import uncached
from hybridge.export.program.eager import eager_session
from hybridge.export.source.checkpoint import load_checkpoint
from hybridge.export.source.text_model import Glm5NextTextForCausalLM
from hybridge.runtime.artifact.options import ExportOptions

VISION = {"depth": 1, "hidden_size": 32, "num_heads": 2, "intermediate_size": 40, "out_hidden_size": 48}


def kinds(max_seq_len: int = 40, **overrides: Any) -> list[str]:
    cache = HybridCache.from_config(tiny_config("glm5_next_text", **overrides), max_seq_len=max_seq_len)
    return [layer.kind for layer in cache.cache_layers()]


@pytest.mark.parametrize("tied", [False, True])
@torch.no_grad()
def test_the_text_of_a_whole_checkpoint_is_loaded(tmp_path: Path, tied: bool) -> None:
    text = tiny_config("glm5_next_text", tie_word_embeddings=tied).to_dict()
    config = Glm5NextConfig(text_config=text, vision_config=VISION, tie_word_embeddings=tied)
    whole = lively(Glm5NextForConditionalGeneration(config).eval())
    whole.save_pretrained(tmp_path)
    loaded = load_checkpoint(tmp_path).model
    assert isinstance(loaded, Glm5NextTextForCausalLM)
    ids = torch.arange(20)[None]
    torch.testing.assert_close(loaded(ids).logits, whole(ids, use_cache=False).logits, rtol=0, atol=1e-6)


def test_an_indexer_that_would_select_everything_keeps_nothing() -> None:
    indexed = ["kimi_delta_attention", "indexed_attention + key_pool", "indexed_attention"]
    latent = ["kimi_delta_attention", "latent_attention", "latent_attention"]
    assert kinds(index_topk=36) == indexed
    assert kinds(index_topk=40) == latent


@torch.no_grad()
def test_without_its_indexer_the_model_is_the_same() -> None:
    model = lively(tiny_model(tiny_config("glm5_next_text", index_topk=40)))
    session = eager_session(model, ExportOptions(max_seq_len=40, prefill_chunk=17, verify_len=5))
    got, want = session.prefill(list(range(40))), uncached(model)(list(range(40)))[-1]
    torch.testing.assert_close(torch.from_numpy(got), want, rtol=0, atol=2e-5 * float(want.abs().max()))


@pytest.mark.parametrize(
    ("overrides", "error", "message"),
    [
        ({"index_kpool_always_select_tail": False}, UnsupportedModelError, "index_kpool_always_select_tail = false"),
        ({"index_kpool": 1}, UnsupportedModelError, "index_kpool = 1"),
        ({"index_topk": 0}, UnsupportedModelError, "index_topk = 0"),
        ({"indexer_types": ["full", "shared", "full"]}, CheckpointError, r"indexer_types\[1\] = 'shared'"),
    ],
)
def test_what_cannot_be_run_is_refused_by_name(overrides: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        kinds(**overrides)
