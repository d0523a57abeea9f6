"""Of a multimodal checkpoint the text model is exported, and it computes what the whole computes for text."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import lively
from transformers import AutoConfig, AutoModelForImageTextToText
from zoo import VARIANTS

from hybridge.export.checkpoint.loading import load_checkpoint
from hybridge.export.reference.eager import eager_session
from hybridge.runtime.artifacts.options import ExportOptions

VISION: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_heads": 2,
    "depth": 1,
    "image_size": 28,
    "patch_size": 14,
    "out_hidden_size": 48,
    "vision_output_dim": 48,
}
WHOLES = {"gemma3": "gemma3_text", "gemma4": "gemma4_text", "qwen3_5": "qwen3_5_text", "llama4": "llama4_text"}


@pytest.mark.slow
@pytest.mark.parametrize("whole", WHOLES)
@torch.no_grad()
def test_the_text_model_of_a_multimodal_checkpoint(tmp_path: Path, whole: str) -> None:
    sizes = {"text_config": VARIANTS[WHOLES[whole]][0], "vision_config": VISION, "audio_config": None}
    model = lively(AutoModelForImageTextToText.from_config(AutoConfig.for_model(whole, **sizes), dtype=torch.float32).eval())
    model.save_pretrained(tmp_path)
    text = torch.arange(20)[None] + 40
    want = model(input_ids=text, attention_mask=torch.ones_like(text), use_cache=False).logits[0, -1].float()
    loaded = load_checkpoint(tmp_path).model
    assert loaded.config.model_type == WHOLES[whole]
    assert not [name for name, _ in loaded.named_parameters() if "vision" in name]
    session = eager_session(loaded, ExportOptions(max_seq_len=67, prefill_chunk=17, verify_len=5))
    torch.testing.assert_close(session.prefill(text[0].tolist()), want, rtol=1e-4, atol=1e-5)
