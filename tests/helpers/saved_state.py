"""A state file that has something of everything."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hybridge.runtime import Session


def save_in_full(session: Session, prompt: Sequence[int], path: Path) -> Path:
    """Save a filled slot, a longer text, and a block that waits; the state before does not matter."""
    session.reset()
    session.prefill(prompt[:4])
    session.snapshot(1)
    session.prefill(prompt[4:])
    session.verify([1, 2])
    session.save(path)
    return path
