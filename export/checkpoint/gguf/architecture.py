"""What a GGUF architecture is in transformers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hybridge.export.checkpoint.gguf.file import GgufFile
from hybridge.export.checkpoint.gguf.weights import Weight


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """config: a file to the entries of its config.json; layer: the weights of a decoder layer; model: the others.

    prefix: what the names of a layer's weights begin with, before its number.
    """

    config: Callable[[GgufFile], dict[str, Any]]
    layer: tuple[Weight, ...]
    model: tuple[Weight, ...]
    prefix: str = "model.layers"
