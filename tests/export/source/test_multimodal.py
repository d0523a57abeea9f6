"""Of a multimodal checkpoint the text model is exported, and it computes what the whole computes for text."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import lively
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
from zoo import VARIANTS
from zoo.sizes import SIZES

from hybridge.export.program.eager import eager_session
from hybridge.export.source.checkpoint import load_checkpoint
from hybridge.runtime.artifact.options import ExportOptions

VISION: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 1, "num_attention_heads": 2, "num_heads": 2, "depth": 1,
    "image_size": 28, "patch_size": 14, "out_hidden_size": 48, "vision_output_dim": 48, "deepstack_visual_indexes": [0],
    "fullatt_block_indexes": [0],
}  # fmt: skip
SECTIONS = {"head_dim": 12, "rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "mrope_section": [2, 2, 2]}}
WHOLES: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma3": ("gemma3_text", VARIANTS["gemma3_text"][0]), "gemma4": ("gemma4_text", VARIANTS["gemma4_text"][0]),
    "gemma4_unified": ("gemma4_unified_text", VARIANTS["gemma4_unified_text"][0]),
    "glm5_next": ("glm5_next_text", VARIANTS["glm5_next_text"][0]), "lfm2_vl": ("lfm2", VARIANTS["lfm2"][0]),
    "lfm3_vl": ("lfm3", VARIANTS["lfm3"][0]), "llama4": ("llama4_text", VARIANTS["llama4_text"][0]),
    "nemotron_h_omni": ("nemotron_h", VARIANTS["nemotron_h"][0]), "mistral3": ("mistral", VARIANTS["mistral"][0]),
    "qwen2_5_vl": ("qwen2_5_vl_text", {**SIZES, **SECTIONS}), "qwen3_5": ("qwen3_5_text", VARIANTS["qwen3_5_text"][0]),
    "qwen3_vl": ("qwen3_vl_text", {**SIZES, **SECTIONS}),
    "qwen3_vl_moe": ("qwen3_vl_moe_text", {**SIZES, **SECTIONS, "num_experts": 4, "moe_intermediate_size": 24}),
}  # fmt: skip
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


def test_the_text_model_of_a_published_gemma_3n(tmp_path: Path) -> None:
    """Without the package of its encoder of pictures; layers that share keys have weights for keys in the file."""
    sizes = VARIANTS["gemma3n_text"][0]
    text = lively(AutoModelForCausalLM.from_config(AutoConfig.for_model("gemma3n_text", **sizes), dtype=torch.float32).eval())
    weights = {name.replace("model.", "model.language_model.", 1): each for name, each in text.state_dict().items()}
    del weights["lm_head.weight"]
    for name in [name for name in weights if ".layers.3.self_attn." in name]:
        weights.setdefault(name.replace(".3.", ".4.", 1), weights[name].clone())
    weights |= {"model.vision_tower.timm_model.conv_stem.conv.weight": torch.ones(4, 3), "model.embed_audio.x": torch.ones(3)}
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    AutoConfig.for_model("gemma3n", text_config={"model_type": "gemma3n_text", **sizes}).save_pretrained(tmp_path)
    loaded = load_checkpoint(tmp_path).model
    tokens = torch.arange(20)[None] + 40
    assert loaded(tokens, use_cache=False).logits.equal(text(tokens, use_cache=False).logits)


@pytest.mark.parametrize("pictures", [False, True])
@pytest.mark.parametrize(("top", "inside"), [(True, None), (None, True), (True, False), (False, True), (False, None)])
def test_a_head_is_tied_wherever_the_config_says_so(
    tmp_path: Path, top: bool | None, inside: bool | None, pictures: bool
) -> None:
    """Without a head in the file, and the same with one of its own where neither place says tied."""
    text = {"model_type": "qwen3_5_text", **WHOLES["qwen3_5"][1]}
    config = AutoConfig.for_model("qwen3_5", text_config=text, vision_config=VISION)
    lively(AutoModelForImageTextToText.from_config(config, dtype=torch.float32).eval()).save_pretrained(tmp_path)
    weights, content = load_file(tmp_path / "model.safetensors"), json.loads((tmp_path / "config.json").read_text())
    head, tied = weights.pop("lm_head.weight"), True in (top, inside)
    save_file(weights | ({} if tied else {"lm_head.weight": head}), tmp_path / "model.safetensors", metadata={"format": "pt"})
    for part, told in ((content, top), (content["text_config"], inside)):
        part.pop("tie_word_embeddings", None)
        if told is not None:
            part["tie_word_embeddings"] = told
    (tmp_path / "config.json").write_text(json.dumps(content))
    model = load_checkpoint(tmp_path, pictures=pictures).model
    want = next(each for name, each in weights.items() if name.endswith("embed_tokens.weight")) if tied else head
    assert model.get_output_embeddings().weight.equal(want)
