"""An answer taken apart while it comes: what it says, and the reasoning before it, which a template may leave out later."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from hybridge.runtime.chat.text_stream import Decoder

Message = dict[str, str]
Render = Callable[[list[Message]], str]
"""The text of a conversation by its chat template, up to where the assistant is to speak."""


class Part(Protocol):
    """A piece of an answer: of its content or of its reasoning."""

    @property
    def content(self) -> str: ...
    @property
    def reasoning(self) -> str: ...


class Parts(Protocol):
    """The parts of one answer so far."""

    def feed(self, text: str, /) -> Iterator[Part]:
        """Yield what ``text`` adds."""

    def finish(self) -> Iterator[Part]:
        """Yield what is left once no text will come."""

    def message(self) -> dict[str, Any]:
        """Return the message of what came, as chat templates take it."""


@dataclass(frozen=True)
class Apart:
    """How answers are taken apart. decoder: shows the special tokens that do it; parts: made of the text before an answer."""

    decoder: Decoder
    parts: Callable[[str], Parts]


@dataclass(frozen=True)
class Content:
    """A part of an answer of which all is content."""

    content: str
    reasoning: str = ""


def undivided(decoder: Decoder) -> Apart:
    """Return how answers are taken of which all is content."""
    return Apart(decoder, lambda prompt: Whole())


class Whole:
    """An answer of which all is content; ``Parts``."""

    def __init__(self) -> None:
        self._text = ""

    def feed(self, text: str) -> Iterator[Part]:
        """Yield it."""
        self._text += text
        yield Content(text)

    def finish(self) -> Iterator[Part]:
        """Yield nothing."""
        yield from ()

    def message(self) -> dict[str, Any]:
        """Return the message."""
        return {"role": "assistant", "content": self._text}
