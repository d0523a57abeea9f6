"""What a user asks to export: a checkpoint, and what goes with it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Named:
    """checkpoint: a folder, a GGUF file, or a model's id.

    adapters: folders of LoRA adapters, merged in this order; tokenizer: a folder whose tokenizer and chat template take the
    place of the checkpoint's own.
    """

    checkpoint: str | Path
    adapters: tuple[Path, ...] = ()
    tokenizer: Path | None = None


def named(checkpoint: str | Path | Named) -> Named:
    """Return ``checkpoint`` as it is, or alone."""
    return checkpoint if isinstance(checkpoint, Named) else Named(checkpoint=checkpoint)
