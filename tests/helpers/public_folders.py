"""Checkpoint folders in the form that they are published in, scaled down."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from mtp_reference import published, random_mtp
from safetensors.torch import load_file, save_file
from tiny import lively
from tokenizer_folders import SPECIAL, added_token, save_vocabulary, write_json
from transformers import AutoConfig, AutoModelForImageTextToText
from zoo import VARIANTS

from hybridge.export.source.checkpoint import load_checkpoint

CHAT_TEMPLATES = Path(__file__).parent / "chat_templates"
VISION: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 40,
    "depth": 1,
    "num_heads": 2,
    "patch_size": 14,
    "out_hidden_size": 48,
}
TOKENS = 330
END_OF_DOCUMENT, END_OF_TURN = 0, 2


def save_qwen3_5(folder: Path, seed: int = 0) -> None:
    """Write a Qwen3.5 folder: pictures and text in one config, ``mtp.*`` beside the model, and no tokenizer.json.

    A document ends with ``<|endoftext|>``, says the config; a turn with ``<|im_end|>``, says the tokenizer's config alone.
    """
    text = {**VARIANTS["qwen3_5_text"][0], "vocab_size": TOKENS, "eos_token_id": END_OF_DOCUMENT}
    config = AutoConfig.for_model("qwen3_5", text_config=text, vision_config=VISION)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForImageTextToText.from_config(config, dtype=torch.float32).eval()
    lively(model, seed).save_pretrained(folder)
    (folder / "generation_config.json").unlink()
    path = folder / "model.safetensors"
    target = load_checkpoint(folder).model
    save_file(load_file(path) | published(target, random_mtp(target, seed)), path, metadata={"format": "pt"})
    save_vocabulary(folder, TOKENS)
    write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "Qwen2Tokenizer",
            "eos_token": SPECIAL[END_OF_TURN],
            "pad_token": SPECIAL[END_OF_DOCUMENT],
            "added_tokens_decoder": {str(i): added_token(token) for i, token in enumerate(SPECIAL)},
            "chat_template": (CHAT_TEMPLATES / "qwen3_5.jinja").read_text(),
        },
    )
