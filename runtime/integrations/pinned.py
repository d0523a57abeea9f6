"""transformers 5.23: what a generation does by default, and the base of its streamers."""

from __future__ import annotations

from typing import Any

from transformers import GenerationConfig
from transformers.generation import BaseStreamer

Streamer = BaseStreamer
"""Has ``put`` for token ids and ``end``."""


def generation_defaults() -> dict[str, Any]:
    """Return what generation does where nobody says anything, of all options; a new GenerationConfig has None for most."""
    defaults: dict[str, Any] = GenerationConfig._get_default_generation_params()
    blank: dict[str, Any] = GenerationConfig().to_dict()
    return blank | defaults


ORIGIN = frozenset({"transformers_version", "_from_model_config"})
"""Keys of a generation config about itself."""
