"""Tokens to text as it becomes complete, up to a stop string."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from hybridge.cache.errors import UsageError

UNFINISHED = "\ufffd"
"""What tokenizers put where the bytes of a character are not all there."""

LONGEST_CHARACTER = 4
"""Bytes, and so tokens, of a character in UTF-8."""


class Decoder(Protocol):
    """The part of ``tokenizers.Tokenizer`` that a stream needs."""

    def decode(self, ids: Sequence[int], /) -> str: ...


class TextStream:
    """The text of a growing list of tokens, in pieces that never change.

    A character of several tokens is held back until all have come, and so is what may be the beginning of a stop string. A stop
    string that is met ends the text just before it. Only a few tokens are decoded at a time, however long the text is: those
    since the last piece and the ones before them, because some tokenizers decode a token by what precedes it.
    """

    def __init__(self, tokenizer: Decoder, stop: Sequence[str] = ()) -> None:
        """Raises UsageError for an empty stop string, which would end every text before it begins."""
        if "" in stop:
            raise UsageError("a stop string is empty; give at least one character.")
        self.tokenizer, self.stop = tokenizer, stop
        self.stopped = False
        self._ids: list[int] = []
        self._context = self._settled = 0  # _ids[_context:_settled] is decoded already, and decoded again for what follows
        self._ready, self._held = "", ""

    def push(self, token: int) -> bool:
        """Take in a token; whether a stop string was met, so that it can be what a generation goes on ``until``."""
        self._ids.append(token)
        known, text = self._window()
        if len(text) <= len(known):
            return self.stopped
        if not text.endswith(UNFINISHED):
            self._settle(len(self._ids), text[len(known) :])
        elif len(self._ids) - self._settled > LONGEST_CHARACTER:
            self._settle_broken(known, text)
        return self.stopped

    def read(self) -> str:
        """Return the text that became complete since the last call."""
        taken, self._ready = self._ready, ""
        return taken

    def finish(self) -> str:
        """Return what is left once no token will come."""
        known, text = self._window()
        self._settle(len(self._ids), text[len(known) :])
        if not self.stopped:
            self._ready, self._held = self._ready + self._held, ""
        return self.read()

    def _window(self) -> tuple[str, str]:
        """The text of the tokens that are decoded already, as far as they are kept, and the same with the new ones."""
        known = self.tokenizer.decode(self._ids[self._context : self._settled])
        text = self.tokenizer.decode(self._ids[self._context :])
        if not text.startswith(known):  # tokens for single bytes that now make no character any more; what was handed out stays
            return "", self.tokenizer.decode(self._ids[self._settled :])
        return known, text

    def _settle(self, count: int, piece: str) -> None:
        """``piece`` is what the tokens up to ``count`` add to the text."""
        self._context, self._settled = self._settled, count
        self._release(piece)

    def _settle_broken(self, known: str, text: str) -> None:
        """Bytes that no character has do not hold back the text for ever, where the last token begins anew behind them."""
        before = self.tokenizer.decode(self._ids[self._context : -1])
        if before.startswith(known) and before + self.tokenizer.decode(self._ids[-1:]) == text:
            self._settle(len(self._ids) - 1, before[len(known) :])

    def _release(self, piece: str) -> None:
        if self.stopped:
            return
        if not self.stop:
            self._ready += piece
            return
        self._held += piece
        # Of several the one that is complete first, however the text is cut into pieces.
        met = [(self._held.find(each) + len(each), self._held.find(each)) for each in self.stop if each in self._held]
        self.stopped = bool(met)
        end = min(met)[1] if met else len(self._held) - self._beginning()
        self._ready, self._held = self._ready + self._held[:end], self._held[end:]

    def _beginning(self) -> int:
        """Return how many characters at the end may begin a stop string."""
        longest = max(map(len, self.stop), default=0)
        ends = (self._held[-size:] for size in range(min(longest - 1, len(self._held)), 0, -1))
        return next((len(end) for end in ends if any(stop.startswith(end) for stop in self.stop)), 0)


# An answer taken apart while it comes: what it says, and the reasoning before it, which a template may leave out
# later.


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
