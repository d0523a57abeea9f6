"""The names of a program's state in its own order, which the runtime's Python has no function for.

They are read from the program's plan, a flatbuffer: a table is a place, its fields are found by number through a table of
offsets before it, and every offset is from where it stands (https://flatbuffers.dev/internals).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from hybridge.cache.errors import ArtifactError
from hybridge.runtime.pinned import (
    EXTRA_TENSOR_INFO,
    FULLY_QUALIFIED_NAME,
    HEADER_MAGIC,
    PLAN_NAME,
    PLAN_VALUES,
    PROGRAM_PLANS,
    TENSOR,
    VALUE,
    VALUE_TYPE,
)

HEAD_BYTES = 24
"""So many bytes of a file say how many its plans take."""
LARGEST_PLAN = 1 << 28
"""Bytes; those of large models take a hundredth of it."""

MOST_TABLES = 1 << 20
"""Plans of a program, and values of a plan."""


def plan_bytes(head: bytes) -> int:
    """Return how many bytes of a program from its first on are the plans, by its first ``HEAD_BYTES``; at most so many."""
    has_header = len(head) == HEAD_BYTES and head[8:12] == HEADER_MAGIC
    return min(_number("Q", head, 16), LARGEST_PLAN) if has_header else LARGEST_PLAN


def buffer_names_of(program: bytes, method: str) -> list[str]:
    """Return the qualified names of the buffers of ``method``, from the first bytes of a file of which the plans are part.

    Raises ArtifactError where it has no such method, or is no program.
    """
    try:
        for plan in _tables(program, _number("I", program, 0), PROGRAM_PLANS):
            if _text(program, plan, PLAN_NAME) == method:
                return list(_names(program, plan))
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise ArtifactError(f"the program's plan cannot be read ({error}); export the model again.") from None
    raise ArtifactError(f"the program has no method {method}; export the model again.")


def _names(data: bytes, plan: int) -> Iterator[str]:
    """A value is part of the state if it is a tensor with a name."""
    for value in _tables(data, plan, PLAN_VALUES):
        kind, tensor = _field(data, value, VALUE_TYPE), _field(data, value, VALUE)
        if kind is None or tensor is None or data[kind] != TENSOR:
            continue
        extra = _field(data, _follow(data, tensor), EXTRA_TENSOR_INFO)
        if extra is not None and (name := _text(data, _follow(data, extra), FULLY_QUALIFIED_NAME)) is not None:
            yield name


def _tables(data: bytes, table: int, field: int) -> Iterator[int]:
    """The tables of a field that is a list of them."""
    if (place := _field(data, table, field)) is not None:
        start = _follow(data, place)
        count = _number("I", data, start)
        if count > MOST_TABLES:
            raise struct.error(f"a list has {count} entries")
        for i in range(count):
            yield _follow(data, start + 4 + 4 * i)


def _text(data: bytes, table: int, field: int) -> str | None:
    if (place := _field(data, table, field)) is None:
        return None
    start = _follow(data, place)
    return data[start + 4 : start + 4 + _number("I", data, start)].decode()


def _field(data: bytes, table: int, number: int) -> int | None:
    """Where a field stands; None where the table leaves it out."""
    offsets = table - _number("i", data, table)
    at = 4 + 2 * number
    offset = _number("H", data, offsets + at) if at < _number("H", data, offsets) else 0
    return table + offset if offset else None


def _follow(data: bytes, place: int) -> int:
    return place + _number("I", data, place)


def _number(kind: str, data: bytes, place: int) -> int:
    if place < 0:
        raise struct.error("an offset leads out of it")
    number: int = struct.unpack_from(f"<{kind}", data, place)[0]
    return number
