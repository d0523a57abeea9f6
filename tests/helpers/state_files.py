"""State files: saved by a session, or altered by somebody who knows how their checksums are made."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from pathlib import Path

from hybridge.runtime import Session

HEADER = 48
"""Bytes in front of the content: format, model, checksum, bytes of buffers, number of texts."""
PRIME, MASK = 0x100000001B3, (1 << 64) - 1


def save_in_full(session: Session, prompt: Sequence[int], path: Path) -> Path:
    """Save a filled slot, a longer text, and a block that waits; the state before does not matter."""
    session.reset()
    session.prefill(prompt[:4])
    session.snapshot(1)
    session.prefill(prompt[4:])
    session.verify([1, 2])
    session.save(path)
    return path


def forge_state(path: Path, change: Callable[[bytearray], object]) -> None:
    """Change the content of a state file, and its checksum with it."""
    data = bytearray(path.read_bytes())
    header, content = data[:HEADER], data[HEADER:]
    change(content)
    model = struct.unpack("<Q", header[16:24])[0]
    header[24:32] = struct.pack("<Q", _fnv1a(content, model))
    path.write_bytes(header + content)


def state_content(buffers: bytes, texts: Sequence[Sequence[int]], note: bytes = b"") -> bytes:
    """Return the content of a state file: the buffers, each text behind its length, the note behind its own."""
    behind = b"".join(struct.pack(f"<{1 + len(text)}q", len(text), *text) for text in texts)
    return buffers + behind + struct.pack("<Q", len(note)) + note


def _fnv1a(data: bytes, start: int) -> int:
    value = start
    for byte in data:
        value = (value ^ byte) * PRIME & MASK
    return value
