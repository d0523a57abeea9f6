"""Where the plans of a program lie in its file."""

from __future__ import annotations

from hybridge.runtime.artifacts.checked_file import CheckedFile
from hybridge.runtime.artifacts.flatbuffer import unpack
from hybridge.runtime.pinned import HEADER_MAGIC

HEAD_BYTES = 32
"""So many bytes of a file say how many its plans take, and where its segments begin."""
LARGEST_PLAN = 1 << 28
"""Bytes; those of large models take a hundredth of it."""


def plan_bytes(head: bytes) -> int:
    """Return how many bytes of a program from its first on are the plans, by its first ``HEAD_BYTES``; at most so many."""
    return min(unpack("Q", head, 16)[0], LARGEST_PLAN) if _has_header(head) else LARGEST_PLAN


def plans_of(program: CheckedFile) -> bytes:
    """Return the first bytes of a program, of which the plans are part."""
    return program.first(plan_bytes(program.first(HEAD_BYTES)))


def segment_base(head: bytes) -> int:
    """Return where the segments of a program begin in its file, by its first ``HEAD_BYTES``; 0 where it has none."""
    return unpack("Q", head, 24)[0] if _has_header(head) else 0


def _has_header(head: bytes) -> bool:
    return len(head) == HEAD_BYTES and head[8:12] == HEADER_MAGIC
