"""Families with nothing but attention: ``hybridge.export.adapt`` gives them all they need, through transformers' own hook."""

from __future__ import annotations

from collections.abc import Mapping

from hybridge.export.families.family import Adaptation

FAMILIES: Mapping[str, Adaptation] = {"llama": Adaptation(), "qwen3": Adaptation(), "mistral": Adaptation()}
