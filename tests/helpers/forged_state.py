"""Saved states as hybridge 0.2 wrote them, and the core's, altered by somebody who knows how their checksums are made."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from hybridge.runtime import Session

Content = dict[str, Any]
"""format, artifact, texts and note as they stand in the header; buffers by name under ``buffers``."""


def save_as_before(session: Session, path: Path, note: str = "") -> Path:
    """Write a session's state as version 0.2 did."""
    texts = json.dumps({"tokens": session.tokens, "slots": list(session.slots.items())})
    metadata = {"format": "hybridge-state-1", "artifact": str(session.manifest.identity), "texts": texts, "note": note}
    buffers = {name: each for name, each in session.state().items() if not name.rpartition(".")[2].startswith("staged")}
    _write(path, metadata, buffers)
    return path


def forge_state(path: Path, change: Callable[[Content], object]) -> None:
    """Change what a state file of 0.2 says, and its checksum with it."""
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    metadata = json.loads(data[8 : 8 + size])["__metadata__"]
    del metadata["checksum"]
    content: Content = metadata | {"buffers": {name: each.copy() for name, each in safetensors.numpy.load(data).items()}}
    change(content)
    buffers: dict[str, NDArray[Any]] = content.pop("buffers")
    _write(path, content, buffers)


def forge_texts(path: Path, change: Callable[[Content], object]) -> None:
    """Change the tokens of such a file, or of its slots."""

    def rewrite(content: Content) -> None:
        texts = json.loads(content["texts"])
        change(texts)
        content["texts"] = json.dumps(texts)

    forge_state(path, rewrite)


def _write(path: Path, metadata: dict[str, str], buffers: dict[str, NDArray[Any]]) -> None:
    digest = hashlib.sha256(json.dumps(metadata, sort_keys=True).encode())
    for name in sorted(buffers):
        digest.update(f"{name} torch.{buffers[name].dtype} {list(buffers[name].shape)}".encode())
        digest.update(np.ascontiguousarray(buffers[name]).tobytes())
    path.write_bytes(safetensors.numpy.save(buffers, metadata | {"checksum": digest.hexdigest()}))


HEADER = 48
"""Bytes in front of the core's: format, model, checksum, bytes of buffers, texts."""
BASIS, PRIME, MASK = 0xCBF29CE484222325, 0x100000001B3, (1 << 64) - 1


def forge_native_state(path: Path, change: Callable[[bytearray], object]) -> None:
    """Change what stands behind the header of the core's state file, and its checksum with it."""
    data = bytearray(path.read_bytes())
    header, content = data[:HEADER], data[HEADER:]
    change(content)
    model = struct.unpack("<Q", header[16:24])[0]
    header[24:32] = struct.pack("<Q", _fnv1a(content, model))
    path.write_bytes(header + content)


def without_note(path: Path) -> None:
    """Make of the core's state file, with an empty note, one of the version before it had notes."""
    data = bytearray(path.read_bytes())
    header, content = data[:HEADER], data[HEADER:-8]
    header[:16] = b"hybridge-state1".ljust(16, b"\0")
    header[24:32] = struct.pack("<Q", _fnv1a(content, struct.unpack("<Q", header[16:24])[0]))
    path.write_bytes(header + content)


def _fnv1a(data: bytes, start: int) -> int:
    value = start
    for byte in data:
        value = (value ^ byte) * PRIME & MASK
    return value
