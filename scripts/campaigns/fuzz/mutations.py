"""Files changed as no good program would write them: JSON by its structure, others where numbers lie."""

from __future__ import annotations

import copy
import json
import random
import struct
from collections.abc import Callable
from typing import Any

INTEGERS = (0, 1, 2, 3, 7, 127, 255, 2**15, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
VALUES: tuple[Any, ...] = (
    *(None, True, False, -1, 0, 1, 2, 1.5, 2**31, 2**63, -(2**63), 10**30, 1e308, float("nan"), float("inf")),
    *("", "x", "0", "../../etc/passwd", "/dev/zero", "\0", "\ud800", "a" * 70_000),
    *([], {}, [[]], [None], [1, "x"], {"a": 1}, {"": {}}, [0] * 100_000),
)
DEEP = 20_000

Path = tuple[str | int, ...]


def changed_json(rng: random.Random, content: Any) -> Any:
    """Return ``content`` with one to three places replaced, removed, moved or doubled."""
    changed = copy.deepcopy(content)
    for _ in range(rng.randint(1, 3)):
        paths = list(_paths(changed))
        if not paths:
            return changed
        *way, last = rng.choice(paths)
        holder = _at(changed, tuple(way))
        rng.choice(JSON_CHANGES)(rng, holder, last, changed)
    return changed


def changed_text(rng: random.Random, text: bytes) -> bytes:
    """Return a JSON file changed by its structure, three times of four, else as text."""
    if rng.random() < 0.75:
        return json.dumps(changed_json(rng, json.loads(text))).encode()
    at = rng.randrange(len(text))
    return rng.choice(
        (
            text[:at],
            text[:at] + text[at + rng.randint(1, 9) :],
            text[:at] + rng.randbytes(4) + text[at:],
            b"[" * DEEP + b"]" * DEEP,
            b'{"a":' * DEEP + b"1" + b"}" * DEEP,
            text.decode().encode("utf-16"),
            b"\xef\xbb\xbf" + text,
            b"",
            b"null",
            text.replace(b"{", b'{"version": 1, ', 1),
            text.replace(b"0", b"-0e9999", 1),
        )
    )


def changed_bytes(rng: random.Random, data: bytes, first: int = 0, end: int | None = None) -> bytes:
    """Return ``data`` with numbers, bits or stretches changed between ``first`` and ``end``."""
    changed, end = bytearray(data), len(data) if end is None else end
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(first, end)
        kind = rng.random()
        if kind < 0.5:  # a number of a flatbuffer or a header, where those lie
            width, form = rng.choice(((4, "<I"), (4, "<I"), (8, "<Q"), (1, "<B")))
            at -= at % width
            changed[at : at + width] = struct.pack(form, rng.choice(INTEGERS) % 2 ** (8 * width))
        elif kind < 0.75:
            changed[at] ^= 1 << rng.randrange(8)
        elif kind < 0.9:  # a stretch from somewhere else: tables and offsets that belong to others
            length, source = 4 * rng.randint(1, 16), rng.randrange(first, end)
            changed[at : at + length] = data[source : source + length]
        else:
            changed[at : at + rng.randint(1, 64)] = bytes(rng.randint(1, 64))
    return bytes(changed[: rng.randrange(len(changed))]) if rng.random() < 0.05 else bytes(changed)


def _paths(content: Any, way: Path = ()) -> Any:
    children = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for name, value in children:
        yield (*way, name)
        yield from _paths(value, (*way, name))


def _at(content: Any, way: Path) -> Any:
    for step in way:
        content = content[step]
    return content


def _replace(rng: random.Random, holder: Any, place: Any, whole: Any) -> None:
    holder[place] = copy.deepcopy(rng.choice(VALUES))


def _nudge(rng: random.Random, holder: Any, place: Any, whole: Any) -> None:
    value = holder[place]
    if isinstance(value, bool) or not isinstance(value, int | float):
        _replace(rng, holder, place, whole)
    else:
        holder[place] = rng.choice((value + 1, value - 1, -value, 2 * value, value * 2**20, str(value), [value]))


def _remove(rng: random.Random, holder: Any, place: Any, whole: Any) -> None:
    del holder[place]


def _take(rng: random.Random, holder: Any, place: Any, whole: Any) -> None:
    """The value of another place."""
    holder[place] = copy.deepcopy(_at(whole, rng.choice(list(_paths(whole)))))


def _rename(rng: random.Random, holder: Any, place: Any, whole: Any) -> None:
    if isinstance(holder, dict):
        holder[rng.choice(("", "x", f"{place} ", "../x", "a" * 5000))] = holder.pop(place)
    else:
        holder += holder[: rng.randint(1, 4)]


JSON_CHANGES: tuple[Callable[[random.Random, Any, Any, Any], None], ...] = (_replace, _replace, _nudge, _remove, _take, _rename)
