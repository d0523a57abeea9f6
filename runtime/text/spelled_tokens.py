"""Keep special tokens that people spell in messages apart from those that a chat template writes: they stay text.

A template gets a private-use character for each special token in what people wrote, and the text is put back behind it: so it
is known where in the rendered text it is, and the tokenizer takes no special token of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any, TypeVar

from hybridge.runtime.core.tokenizer import Tokenizer

Given = TypeVar("Given")
Spans = tuple[tuple[int, int], ...]
FIRST_MARKER = 0x100000
"""Of the characters for private use, the last that anybody uses."""


@dataclass(frozen=True)
class Rendered:
    """A text of a template. spelled: the parts of it, in characters, in which people spelled a special token."""

    text: str
    spelled: Spans = ()

    def begins_with(self, other: Rendered) -> bool:
        """Return whether this begins with another text, in which people spelled the same."""
        return self.text.startswith(other.text) and self.until(len(other.text)).spelled == other.spelled

    def until(self, end: int) -> Rendered:
        """Return the text before a character."""
        return Rendered(self.text[:end], tuple((a, min(b, end)) for a, b in self.spelled if a < end))

    def behind(self, begin: int) -> Rendered:
        """Return the text from a character on."""
        return Rendered(self.text[begin:], tuple((max(a - begin, 0), b - begin) for a, b in self.spelled if b > begin))


class SpelledTokens:
    """Finds the special tokens of a tokenizer in what people wrote."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        texts = sorted(tokenizer.added_tokens(special=True).values(), key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, texts)) or "(?!)")

    def found(self, text: str) -> Spans:
        """Return the parts of a text that spell a special token."""
        return tuple(match.span() for match in self._special.finditer(text))

    def rendered(self, render: Callable[[Given], str], given: Given) -> Rendered:
        """Return what a template makes of messages, or of what else people wrote: ``given`` is lists and objects of texts."""
        markers, free = dict[str, str](), _free_characters(given)

        def marker(match: re.Match[str]) -> str:
            if match[0] not in markers:
                markers[match[0]] = next(free)
            return markers[match[0]]

        text = render(_with_texts(given, lambda written: self._special.sub(marker, written)))
        return _restored(text, {marker: spelled for spelled, marker in markers.items()}) if markers else Rendered(text)


def _free_characters(given: Any) -> Iterator[str]:
    """Yield characters for private use that nobody wrote, neither as they are nor as JSON's escapes."""
    written = json.dumps(given, ensure_ascii=False, default=str).replace("\\\\", "\\")
    yield from (each for each in map(chr, count(FIRST_MARKER)) if each not in written and _escape(each) not in written)


def _escape(character: str) -> str:
    return json.dumps(character)[1:-1]


def _with_texts(given: Any, change: Callable[[str], str]) -> Any:
    """Return lists and objects with each text changed."""
    if isinstance(given, str):
        return change(given)
    if isinstance(given, Mapping):
        return {change(name): _with_texts(value, change) for name, value in given.items()}
    if isinstance(given, list | tuple):
        return [_with_texts(each, change) for each in given]
    return given


def _restored(text: str, markers: Mapping[str, str]) -> Rendered:
    """Return the text with what the markers stand for; a template may have written one as JSON's escape."""
    known = {**markers, **{_escape(marker): spelled for marker, spelled in markers.items()}}
    pieces, spans, length, last = [], [], 0, 0
    for match in re.finditer("|".join(map(re.escape, known)), text):
        before, spelled = text[last : match.start()], known[match[0]]
        pieces += [before, spelled]
        length += len(before) + len(spelled)
        spans.append((length - len(spelled), length))
        last = match.end()
    return Rendered("".join([*pieces, text[last:]]), tuple(spans))
