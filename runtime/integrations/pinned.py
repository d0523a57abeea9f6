"""Name what transformers 5.23 does not document: a generation's defaults, the base of its streamers, its list of models."""

from __future__ import annotations

from typing import Any

from transformers import GenerationConfig
from transformers.generation import BaseStreamer
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

__all__ = ["ORIGIN", "BaseStreamer", "generation_defaults", "list_for_pipelines"]


def generation_defaults() -> dict[str, Any]:
    """Return transformers' default of every option; a new GenerationConfig has None for most of them."""
    defaults: dict[str, Any] = GenerationConfig._get_default_generation_params()
    blank: dict[str, Any] = GenerationConfig().to_dict()
    return blank | defaults


def list_for_pipelines(name: str) -> None:
    """Let ``pipeline("text-generation", ...)`` take a class of this name without logging that it is not supported."""
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES["hybridge"] = name


ORIGIN = frozenset({"transformers_version", "_from_model_config"})
"""Keys of a generation config about itself."""
