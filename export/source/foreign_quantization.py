"""Weights that MLX wrote, which lays some of them out in its own way: refused, with where others come from."""

from __future__ import annotations

from pathlib import Path

from hybridge.cache.errors import NotACheckpointError

ORIGINAL = (
    "Give the original checkpoint, in float32, float16 or bfloat16. "
    "hybridge quantizes by itself: export the original with --quantize."
)


def mlx_error(folder: Path) -> NotACheckpointError:
    """Return what to say of a folder with such weights."""
    return NotACheckpointError(f"{folder} holds weights that were converted for MLX. {ORIGINAL}")
