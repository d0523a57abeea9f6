"""Saved states as hybridge 0.2 wrote them, for what still reads those."""

from __future__ import annotations

import json
from pathlib import Path

import safetensors.numpy

from hybridge.runtime import Session
from hybridge.runtime.core.saved_states import FORMAT, _checksum


def save_as_older(session: Session, path: Path, note: str = "") -> Path:
    """Write the session's state in the format of 0.2, which left out what waits for a commit."""
    buffers = {name: each for name, each in session.state().items() if not name.rpartition(".")[2].startswith("staged")}
    texts = {"tokens": session.tokens, "slots": sorted(session.slots.items())}
    metadata = {"format": FORMAT, "artifact": str(session.manifest.identity), "texts": json.dumps(texts), "note": note}
    metadata["checksum"] = _checksum(metadata, buffers)
    path.write_bytes(safetensors.numpy.save(buffers, metadata))
    return path
