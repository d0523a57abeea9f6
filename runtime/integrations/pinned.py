"""Name what transformers 5.23 does not document: the defaults of a generation, and the base of its streamers."""

from __future__ import annotations

from typing import Any

from transformers import GenerationConfig
from transformers.generation import BaseStreamer

__all__ = ["ORIGIN", "BaseStreamer", "generation_defaults"]


def generation_defaults() -> dict[str, Any]:
    """Return transformers' default of every option; a new GenerationConfig has None for most of them."""
    defaults: dict[str, Any] = GenerationConfig._get_default_generation_params()
    blank: dict[str, Any] = GenerationConfig().to_dict()
    return blank | defaults


ORIGIN = frozenset({"transformers_version", "_from_model_config"})
"""Keys of a generation config about itself."""
