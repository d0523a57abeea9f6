"""hybridge: hybrid language models on a device, exported once, run with speculative rollback.

The packages live at the repository's root (``cache``, ``export``, ``runtime``); this folder gives them their import name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from hybridge.export.causal_lm import CausalLM
    from hybridge.runtime.drafter import Drafter

__version__ = "0.1.0"


def load(folder: str | Path, *, drafter: Drafter | None = None) -> CausalLM:
    """Open an artifact with transformers' interface: ``load("OUT").generate(**tokenizer(text, return_tensors="pt"))``.

    Raises ArtifactError, saying what is wrong with the folder. Without transformers, use ``hybridge.runtime.Session``.
    """
    from hybridge.export.causal_lm import CausalLM

    return CausalLM.from_pretrained(folder, drafter=drafter)
