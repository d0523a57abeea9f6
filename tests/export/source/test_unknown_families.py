"""A family that hybridge does not know is told apart from one that it could know."""

from pathlib import Path

import pytest
from tiny import tiny_config
from transformers import AutoConfig

from hybridge.cache import HybridCache
from hybridge.cache.errors import CheckpointError, UnsupportedModelError
from hybridge.export.source.checkpoint import resolve_checkpoint


def refusal(folder: Path, model_type: str, **sizes: object) -> str:
    AutoConfig.for_model(model_type, **sizes).save_pretrained(folder)
    with pytest.raises(UnsupportedModelError) as refused:
        resolve_checkpoint(folder)
    return str(refused.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model_type", "part"),
    [("deepseek_v3", "2 × latent attention")],
)
def test_a_family_of_known_parts_lacks_a_table_entry_only(tmp_path: Path, model_type: str, part: str) -> None:
    said = refusal(tmp_path, model_type, num_hidden_layers=2)
    assert f"Parts of it that hybridge has: {part}." in said
    assert "docs/adding-a-family.md" in said


def test_a_family_with_a_state_of_its_own_says_which_layers(tmp_path: Path) -> None:
    said = refusal(tmp_path, "rwkv", num_hidden_layers=2)
    assert "model type 'rwkv' is not supported" in said
    assert "Supported model types: bailing_hybrid, bamba, " in said
    assert "docs/adding-a-family.md" not in said


def test_a_model_without_text_is_refused_as_such(tmp_path: Path) -> None:
    assert "It has no text model" in refusal(tmp_path, "siglip_vision_model")


def test_more_experts_than_there_are_cannot_be_chosen() -> None:
    with pytest.raises(CheckpointError, match=r"num_experts_per_tok = 6 of num_experts = 5.*1 to 5"):
        HybridCache.from_config(tiny_config("qwen3_moe", num_experts_per_tok=6), max_seq_len=32)


def test_a_window_smaller_than_the_convolution_is_refused() -> None:
    config = tiny_config("recurrent_gemma", attention_window_size=2)
    with pytest.raises(CheckpointError, match="window of 2, less than the 3 positions"):
        HybridCache.from_config(config, max_seq_len=32)
