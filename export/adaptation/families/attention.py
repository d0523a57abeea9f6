"""Families with nothing but attention: ``adapt`` gives them all they need, through transformers' own hook."""

from __future__ import annotations

from collections.abc import Mapping

from hybridge.export.adaptation.families.family import Adaptation

PLAIN = (
    "cohere2", "exaone4", "gemma2", "gemma3_text", "gemma4_text", "gpt_oss", "llama", "ministral", "mistral", "olmo3", "phi3",
    "qwen2", "qwen3", "qwen3_moe", "smollm3",
)  # fmt: skip

FAMILIES: Mapping[str, Adaptation] = {name: Adaptation() for name in PLAIN}
