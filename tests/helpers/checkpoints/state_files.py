"""State files: saved by a session, or altered by somebody who knows how their checksums are made."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from pathlib import Path

from hybridge.runtime import Session

HEADER, CHECKED, CHECKSUM = 40, 24, 8
"""Bytes before the content: format, model and, from ``CHECKED`` on, the instruction set; and bytes after it."""
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


def forge_state(path: Path, change: Callable[[bytearray], object], instruction_set: bytes | None = None) -> None:
    """Change the content of a state file, or the set that it names, and its checksum with it."""
    data = path.read_bytes()
    header, content = data[:HEADER], bytearray(data[HEADER:-CHECKSUM])
    change(content)
    if instruction_set is not None:
        header = header[:CHECKED] + instruction_set.ljust(HEADER - CHECKED, b"\0")
    model = struct.unpack("<Q", header[16:CHECKED])[0]
    path.write_bytes(header + content + struct.pack("<Q", _fnv1a(header[CHECKED:] + content, model)))


def texts_content(texts: Sequence[Sequence[int]]) -> bytes:
    """Return what a state file's content begins with."""
    return b"".join(struct.pack(f"<{1 + len(text)}q", len(text), *text) for text in texts)


def _fnv1a(data: bytes, start: int) -> int:
    value = start
    for byte in data:
        value = (value ^ byte) * PRIME & MASK
    return value
