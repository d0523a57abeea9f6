"""A grammar that begins once the model has written something: behind its reasoning, or in a call of a tool."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from hybridge.runtime.core.generation import Constraint
from hybridge.runtime.structured.grammars import Follower

Decode = Callable[[Sequence[int]], str]
BLANK_LINE = "\n\n"
"""What models write between their reasoning and their answer."""


class Lazy:
    """Leaves the choice free until the text has ``opening`` in it, then follows a grammar; a ``Constraint``.

    decode: tokens to text, special ones included. encode: text to tokens. follow: makes what follows the grammar. again: behind
    the end of the grammar the choice is free once more; else the text ends there. before: tokens that may not come before it.
    spaces: what stands between the opening and the grammar. A token that has the opening's end in it and more counts as both
    where the grammar takes the rest, and as neither where it does not.
    """

    def __init__(
        self, decode: Decode, encode: Callable[[str], list[int]], opening: str, follow: Callable[[], Follower], *,
        again: bool = False, before: Collection[int] = (), spaces: str = "",
    ) -> None:  # fmt: skip
        self._decode, self._encode, self._opening, self._follow = decode, encode, opening, follow
        self._again, self._before, self._spaces = again, list(before), spaces
        self._free: list[int] = []
        self._waiting: list[int] = []
        self._inner: Follower | None = None

    def mask(self, logits: NDArray[np.float32]) -> None:
        if self._waiting:
            kept = logits[self._waiting[0]]
            logits.fill(-np.inf)
            logits[self._waiting[0]] = kept
        elif self._inner is not None:
            self._inner.mask(logits)
        else:
            logits[self._before] = -np.inf

    def take(self, token: int) -> None:
        if self._waiting:
            self._waiting.pop(0)
        elif self._inner is not None:
            self._inner.take(token)
            if self._again and self._inner.ended:
                self._inner = None
        else:
            self._watch(token)

    def forced(self) -> list[int]:
        if self._waiting:
            return self._waiting.copy()
        return self._inner.forced() if self._inner is not None else []

    def fitting(self, tokens: Sequence[int]) -> int:
        """Count up to the opening and up to the grammar's end: behind these, tokens are looked at again as they come."""
        if self._waiting:
            return _common(tokens, self._waiting)
        if self._inner is not None:
            return self._inner.fitting(tokens)
        seen = self._free.copy()
        for i, token in enumerate(tokens):
            if token in self._before:
                return i
            seen.append(token)
            if self._rest(seen) is not None:
                return i + 1
        return len(tokens)

    def _watch(self, token: int) -> None:
        """Begin the grammar where the opening is whole."""
        self._free.append(token)
        if (rest := self._rest(self._free)) is None:
            del self._free[: -len(self._opening)]  # a token is a character at least
            return
        self._free.clear()
        inner, said = self._follow(), self._encode(rest.removeprefix(self._spaces)) if rest else []
        if inner.fitting(said) < len(said):
            return
        for each in said:
            inner.take(each)
        self._inner, self._waiting = inner, [] if rest else self._encode(self._spaces)

    def _rest(self, tokens: Sequence[int]) -> str | None:
        """Return what stands behind the opening; none where it is not there."""
        _, found, rest = self._decode(tokens).partition(self._opening)
        return rest if found else None


def behind(end: str, follow: Callable[[], Follower], tokenizer: Tokenizer, eos_ids: Collection[int]) -> Constraint:
    """Return what follows a text that begins with reasoning, up to ``end``, or with none of it where that is empty."""
    if not end:
        return follow()
    decode, encode = in_full(tokenizer)
    return Lazy(decode, encode, end, follow, before=eos_ids, spaces=BLANK_LINE)


def in_full(tokenizer: Tokenizer) -> tuple[Decode, Callable[[str], list[int]]]:
    """Return what decodes with special tokens and encodes without adding any."""
    return (
        lambda tokens: str(tokenizer.decode(tokens, skip_special_tokens=False)),
        lambda text: list(tokenizer.encode(text, add_special_tokens=False).ids),
    )


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
