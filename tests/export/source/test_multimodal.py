"""Of a multimodal checkpoint the text model is exported, and it computes what the whole computes for text."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import lively
from transformers import AutoConfig, AutoModelForImageTextToText
from zoo import VARIANTS
from zoo.sizes import SIZES

from hybridge.export.check.oracle import eager_session
from hybridge.export.source.checkpoint import load_checkpoint
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
    "deepstack_visual_indexes": [0],
    "fullatt_block_indexes": [0],
}
SECTIONS = {"head_dim": 12, "rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "mrope_section": [2, 2, 2]}}
WHOLES: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma3": ("gemma3_text", VARIANTS["gemma3_text"][0]),
    "gemma4": ("gemma4_text", VARIANTS["gemma4_text"][0]),
    "gemma4_unified": ("gemma4_unified_text", VARIANTS["gemma4_unified_text"][0]),
    "glm5_next": ("glm5_next_text", VARIANTS["glm5_next_text"][0]),
    "lfm2_vl": ("lfm2", VARIANTS["lfm2"][0]),
    "lfm3_vl": ("lfm3", VARIANTS["lfm3"][0]),
    "llama4": ("llama4_text", VARIANTS["llama4_text"][0]),
    "nemotron_h_omni": ("nemotron_h", VARIANTS["nemotron_h"][0]),
    "mistral3": ("mistral", VARIANTS["mistral"][0]),
    "qwen2_5_vl": ("qwen2_5_vl_text", {**SIZES, **SECTIONS}),
    "qwen3_5": ("qwen3_5_text", VARIANTS["qwen3_5_text"][0]),
    "qwen3_vl": ("qwen3_vl_text", {**SIZES, **SECTIONS}),
    "qwen3_vl_moe": ("qwen3_vl_moe_text", {**SIZES, **SECTIONS, "num_experts": 4, "moe_intermediate_size": 24}),
}
"""Models of pictures and text: the type and the sizes of their text model; some of them are in no table of families."""


@pytest.mark.slow
@pytest.mark.parametrize("whole", WHOLES)
@torch.no_grad()
def test_the_text_model_of_a_multimodal_checkpoint(tmp_path: Path, whole: str) -> None:
    text_type, text_sizes = WHOLES[whole]
    vision = VISION | ({"video_temporal_patch_size": 2} if whole == "nemotron_h_omni" else {})
    sizes = {"text_config": {"model_type": text_type, **text_sizes}, "vision_config": vision, "audio_config": None}
    model = lively(AutoModelForImageTextToText.from_config(AutoConfig.for_model(whole, **sizes), dtype=torch.float32).eval())
    model.save_pretrained(tmp_path)
    text = torch.arange(20)[None] + 40
    want = model(input_ids=text, attention_mask=torch.ones_like(text), use_cache=False).logits[0, -1].float()
    loaded = load_checkpoint(tmp_path).model
    assert loaded.config.model_type == text_type
    assert not [name for name, _ in loaded.named_parameters() if "vision" in name]
    session = eager_session(loaded, ExportOptions(max_seq_len=67, prefill_chunk=17, verify_len=5))
    torch.testing.assert_close(torch.from_numpy(session.prefill(text[0].tolist())), want, rtol=1e-4, atol=1e-5)
