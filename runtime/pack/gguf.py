"""Read the header of a GGUF file: its metadata and the table of its tensors.

Every length is compared with the rest of the file before anything is read or allocated by it, so that a damaged or forged
file is refused at once. Source: ggml ``docs/gguf.md``, versions 2 and 3.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hybridge.errors import CheckpointError

VERSIONS = (2, 3)
"""Supported versions; version 1 counted in 32 bits and is gone."""
NUMBERS: Mapping[int, struct.Struct] = {
    kind: struct.Struct(f"<{letter}") for kind, letter in zip((0, 1, 7, 2, 3, 4, 5, 6, 10, 11, 12), "Bb?HhIifQqd", strict=True)
}
STRING, ARRAY = 8, 9
COUNT, KIND = NUMBERS[10], NUMBERS[4]
ALIGNMENT = 32
"""The alignment of tensors in a file that does not set it."""

TOKENS = "tokenizer.ggml.tokens"
END_TOKENS = frozenset(
    """<|eot_id|> <|im_end|> <|end|> <|return|> <|call|> <|flush|> <|calls|> <end_of_turn> <|endoftext|> </s> <|eom_id|> <EOT>
    _<EOT> [EOT] [EOS] <|end_of_text|> <end_of_utterance> <eos> <turn|> <|tool_response> <｜end▁of▁sentence｜> [e~[""".split()  # noqa: SIM905  # a line for each token would be longer than the rest
)
"""Tokens at which llama.cpp ends a text because of their names (``src/llama-vocab.cpp``)."""
_END_BYTES = frozenset(each.encode() for each in END_TOKENS)

# A large vocabulary has 2^18 tokens and twice as many merges, a large model some thousand tensors and a hundred
# entries.
MOST_ITEMS, MOST_TENSORS, MOST_ENTRIES, MOST_DIMENSIONS = 1 << 22, 1 << 20, 1 << 16, 4
LONGEST_NAME, LONGEST_TEXT = 1 << 10, 1 << 24


@dataclass(frozen=True, kw_only=True)
class TensorInfo:
    """An entry of the table. shape: in torch's order; kind: GGML's number of its type; offset: from the first tensor's byte."""

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int


@dataclass(frozen=True, kw_only=True)
class GgufHeader:
    """A header.

    metadata: by name, arrays of strings as their length unless asked for; ends: ids of the tokens of END_TOKENS by their
    names; spans: first byte and end of each of its entries; begin: position of the tensors.
    """

    metadata: Mapping[str, Any]
    ends: Mapping[str, int]
    spans: Mapping[str, tuple[int, int]]
    tensors: tuple[TensorInfo, ...]
    begin: int


def read_header(path: Path, strings: Collection[str] = ()) -> GgufHeader:
    """Read the header of the file at ``path``, with the arrays of strings that ``strings`` names.

    Raises CheckpointError, which says which length or value is wrong.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Reader(data, strings).header()
    except (OSError, ValueError, struct.error) as error:  # ValueError: also an empty file, or text that is not UTF-8
        raise CheckpointError(f"{path} cannot be read as GGUF ({error}); download it again.") from None


class _Reader:
    """Reads a header value by value. Raises ValueError for impossible ones."""

    def __init__(self, data: mmap.mmap, strings: Collection[str]) -> None:
        self.data, self.strings, self.place, self.what = data, strings, 0, "its first bytes"
        self.ends: dict[str, int] = {}

    def header(self) -> GgufHeader:
        if self._bytes(4) != b"GGUF":
            raise ValueError("it does not begin with the letters GGUF")
        if (version := self._number(KIND)) not in VERSIONS:
            raise ValueError(f"it is of version {version}, not 2 or 3")
        tensors = self._count("the number of its tensors", MOST_TENSORS, 24)
        entries = self._count("the number of its entries", MOST_ENTRIES, 13)
        metadata: dict[str, Any] = {}
        spans: dict[str, tuple[int, int]] = {}
        for index in range(entries):
            name = self._name(f"the name of entry {index}", metadata)
            self.what, begin = name, self.place
            metadata[name] = self._value(self._number(KIND))
            spans[name] = begin, self.place
        found: dict[str, TensorInfo] = {}
        for index in range(tensors):
            name = self._name(f"the name of tensor {index}", found)
            found[name] = self._tensor(name)
        alignment = _alignment(metadata)
        begin = -(-self.place // alignment) * alignment
        tables = tuple(found.values())
        return GgufHeader(metadata=metadata, ends=self.ends, spans=spans, tensors=tables, begin=begin)

    def _tensor(self, name: str) -> TensorInfo:
        self.what = f"the shape of {name}"
        if (count := self._number(KIND)) > MOST_DIMENSIONS:
            raise ValueError(f"{name} has {count} dimensions, and at most {MOST_DIMENSIONS} are known")
        shape = [self._number(COUNT) for _ in range(count)]
        return TensorInfo(name=name, shape=tuple(reversed(shape)), kind=self._number(KIND), offset=self._number(COUNT))

    def _value(self, kind: int) -> Any:
        if kind in NUMBERS:
            return self._number(NUMBERS[kind])
        if kind == STRING:
            return self._text(LONGEST_TEXT)
        if kind == ARRAY:
            return self._array(self._number(KIND))
        raise ValueError(f"{self.what} is of type {kind}, which no value has")

    def _array(self, kind: int) -> list[Any] | int:
        if kind == STRING:
            count = self._count(self.what, MOST_ITEMS, COUNT.size)
            if self.what in self.strings:
                texts = [self._text(LONGEST_TEXT) for _ in range(count)]
                if self.what == TOKENS:
                    self.ends = {text: index for index, text in enumerate(texts) if text in END_TOKENS}
                return texts
            for index in range(count):
                begin = self.place + COUNT.size
                self._skip(self._number(COUNT))
                if self.what == TOKENS and (text := self.data[begin : self.place]) in _END_BYTES:
                    self.ends[text.decode()] = index
            return count
        if kind not in NUMBERS:
            raise ValueError(f"{self.what} is an array of type {kind}, which is not known")
        number = NUMBERS[kind]
        count = self._count(self.what, MOST_ITEMS, number.size)
        return [value for (value,) in number.iter_unpack(self._bytes(count * number.size))]

    def _count(self, what: str, most: int, size: int) -> int:
        """Read a number of things that take ``size`` bytes or more each."""
        self.what = what
        count: int = self._number(COUNT)
        if count > min(most, self._left() // size):
            raise ValueError(f"{what} should count {count:,}, more than the file has or any model needs")
        return count

    def _name(self, what: str, others: Mapping[str, Any]) -> str:
        self.what = what
        name = self._text(LONGEST_NAME)
        if name in others:
            raise ValueError(f"{name} is there twice")
        return name

    def _text(self, longest: int) -> str:
        length: int = self._number(COUNT)
        if length > longest:
            raise ValueError(f"{self.what} has {length:,} bytes, and at most {longest:,} are read")
        return self._bytes(length).decode("utf-8")

    def _number(self, kind: struct.Struct) -> Any:
        return kind.unpack(self._bytes(kind.size))[0]

    def _bytes(self, count: int) -> bytes:
        begin = self.place
        self._skip(count)
        return self.data[begin : self.place]

    def _skip(self, count: int) -> None:
        if count > self._left():
            raise ValueError(f"{self.what} takes {count:,} bytes, and the file ends after {self._left():,}")
        self.place += count

    def _left(self) -> int:
        return len(self.data) - self.place


def _alignment(metadata: Mapping[str, Any]) -> int:
    alignment = metadata.get("general.alignment", ALIGNMENT)
    if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
        raise ValueError(f"general.alignment is {alignment!r}, and should be a power of two")
    return alignment


HUB_PREFIX = "models--"
"""Begins the name of a model's folder in the hub's cache."""


def hub_origin(path: Path) -> str | None:
    """Return ``ORG/NAME@COMMIT`` if ``path`` is a snapshot of the hub's cache or a file in one, else None."""
    for place in (path.absolute(), *path.absolute().parents):
        if place.parent.name == "snapshots" and place.parent.parent.name.startswith(HUB_PREFIX):
            return f"{place.parent.parent.name.removeprefix(HUB_PREFIX).replace('--', '/', 1)}@{place.name}"
    return None
