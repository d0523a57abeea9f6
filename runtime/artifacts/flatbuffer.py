"""A reader of flatbuffers that trusts no offset: of a program's plans, before the runtime sees them.

A table is a place, its fields are found by number through a table of offsets before it, and every offset is from where it
stands (https://flatbuffers.dev/internals). What leads out of the data raises ``Damaged``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from hybridge.runtime.artifacts.checked_file import CheckedFile
from hybridge.runtime.pinned import HEADER_MAGIC

Damaged = (struct.error, IndexError, UnicodeDecodeError)
"""What reading data that is no flatbuffer raises."""
HEAD_BYTES = 32
"""So many bytes of a file say how many its plans take, and where its segments begin."""
LARGEST_PLAN = 1 << 28
"""Bytes; those of large models take a hundredth of it."""
MOST_ENTRIES = 1 << 20
"""Of a list."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table of a flatbuffer, by its place in the data. Fields that it leaves out are None, 0 or empty."""

    data: bytes
    place: int

    @classmethod
    def root(cls, data: bytes) -> Table:
        """Return the table in which all others are."""
        return cls(data, unpack("I", data, 0)[0])

    def table(self, field: int) -> Table | None:
        """Return the table that a field holds."""
        place = self._place(field)
        return None if place is None else Table(self.data, _follow(self.data, place))

    def tables(self, field: int) -> Iterator[Table]:
        """Yield the tables of a field that is a list of them."""
        start, count = self._list(field)
        for place in range(start, start + 4 * count, 4):
            yield Table(self.data, _follow(self.data, place))

    def text(self, field: int) -> str | None:
        """Return the text of a field."""
        start, count = self._list(field)
        return self.data[start : start + count].decode() if start else None

    def number(self, field: int, kind: str) -> int:
        """Return the number of a field; ``kind`` is one of struct's letters."""
        place = self._place(field)
        return 0 if place is None else int(unpack(kind, self.data, place)[0])

    def numbers(self, field: int, kind: str) -> tuple[int, ...]:
        """Return the numbers of a field that is a list of them."""
        start, count = self._list(field)
        return unpack(f"{count}{kind}", self.data, start)

    def _list(self, field: int) -> tuple[int, int]:
        """Where the entries of a list begin, and how many there are; (0, 0) where the table leaves it out."""
        place = self._place(field)
        if place is None:
            return 0, 0
        start = _follow(self.data, place)
        (count,) = unpack("I", self.data, start)
        if count > MOST_ENTRIES:
            raise struct.error(f"a list has {count} entries")
        return start + 4, count

    def _place(self, field: int) -> int | None:
        """Where a field stands; None where the table leaves it out."""
        offsets = self.place - unpack("i", self.data, self.place)[0]
        at = 4 + 2 * field
        offset = unpack("H", self.data, offsets + at)[0] if at < unpack("H", self.data, offsets)[0] else 0
        return self.place + offset if offset else None


def unpack(kind: str, data: bytes, place: int) -> tuple[int, ...]:
    """Return little-endian numbers from a place on. Raises struct.error where they lead out of the data."""
    if place < 0:
        raise struct.error("an offset leads out of it")
    return struct.unpack_from(f"<{kind}", data, place)


def _follow(data: bytes, place: int) -> int:
    return place + unpack("I", data, place)[0]


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
