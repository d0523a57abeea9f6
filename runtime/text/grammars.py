"""Grammars that a text must follow: JSON schemas and regular expressions by the core, Lark by llguidance."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from ctypes import byref
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridge.cache.errors import GrammarError, UsageError
from hybridge.runtime.artifacts.artifact import Artifact
from hybridge.runtime.core.grammar import CoreGrammar
from hybridge.runtime.core.interface import Handle
from hybridge.runtime.core.library import load
from hybridge.runtime.core.tokenizer import Tokenizer
from hybridge.runtime.text.lark import LarkFollower, LarkGrammar

Grammar = CoreGrammar | LarkGrammar

Decode = Callable[[Sequence[int]], str]


class Grammars:
    """Reads schemas, expressions and grammars for one tokenizer. It takes a second to make for a vocabulary of 250,000."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_ids: Sequence[int]) -> None:
        """Read a tokenizer.

        Args:
            tokenizer: the model's.
            vocab_size: number of logits.
            eos_ids: tokens that end a text.

        Raises:
            UsageError: no token ends a text, or the tokenizer is neither byte-level nor has tokens for bytes.
        """
        if not eos_ids:
            raise UsageError("this model has no token that ends a text, so nothing can say that a structure is complete.")
        self._tokenizer, self._vocab_size, self._eos_ids = tokenizer, vocab_size, list(eos_ids)
        try:
            self.regex("")
        except GrammarError as error:
            raise UsageError(str(error)) from None

    @classmethod
    def of(cls, artifact: Artifact, eos_ids: Sequence[int] | None = None) -> Grammars:
        """Make the grammars of an artifact. eos_ids: tokens that end a text, the model's own if left out. Raises UsageError."""
        if artifact.tokenizer is None:
            raise UsageError(f"{artifact.folder} has no tokenizer.json, which structured output needs.")
        manifest = artifact.manifest
        return cls(Tokenizer.of(artifact), manifest.vocab_size, manifest.eos_ids if eos_ids is None else eos_ids)

    def json_schema(self, schema: Mapping[str, Any]) -> CoreGrammar:
        """Return the grammar of JSON that fits ``schema``. Raises GrammarError for a schema that cannot be followed."""
        try:
            text = json.dumps(dict(schema))
        except (ValueError, TypeError, RecursionError) as error:
            raise GrammarError(f"this JSON schema cannot be followed: {error}.") from None
        return self._read("json_schema", text)

    def regex(self, pattern: str) -> CoreGrammar:
        """Return the grammar of texts that match ``pattern`` as a whole. Raises GrammarError for an invalid expression."""
        return self._read("regex", pattern)

    def lark(self, rules: str) -> LarkGrammar:
        """Return the grammar of ``rules`` in llguidance's variant of Lark, which begin with ``start``.

        Raises:
            GrammarError: the grammar cannot be followed.
            UsageError: llguidance is not installed, or does not take the tokenizer.
        """
        return LarkGrammar(rules, self._tokenizer, self._vocab_size, self._eos_ids)

    def _read(self, kind: str, text: str) -> CoreGrammar:
        data, handle = text.encode("utf-8", "surrogatepass"), Handle()
        if getattr(load(), f"hybridge_grammar_{kind}")(self._tokenizer.handle, data, len(data), byref(handle)):
            raise GrammarError(f"{load().hybridge_failure().decode(errors='replace')}.")
        return CoreGrammar(handle.value, self._eos_ids)


class Lazy:
    """A ``Constraint`` that leaves the choice free until the text contains ``opening``, and then follows a grammar.

    A token that has the opening's end and more in it begins the grammar if the grammar allows the rest, or else does not
    count as the opening.
    """

    def __init__(
        self, decode: Decode, encode: Callable[[str], list[int]], opening: str, follow: Callable[[], LarkFollower], *,
        again: bool = False, before: Collection[int] = (), spaces: str = "",
    ) -> None:  # fmt: skip
        """Wait for the opening.

        Args:
            decode: turns tokens into text, special ones included.
            encode: turns text into tokens.
            opening: the text behind which the grammar begins.
            follow: makes a follower of the grammar.
            again: leave the choice free again behind the end of the grammar; otherwise the text ends there.
            before: tokens that are forbidden until the opening, such as the end of a text.
            spaces: text that is forced between the opening and the grammar.
        """
        self._decode, self._encode, self._opening, self._follow = decode, encode, opening, follow
        self._again, self._before, self._spaces = again, list(before), spaces
        self._free: list[int] = []
        self._waiting: list[int] = []
        self._inner: LarkFollower | None = None

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
        """Count tokens up to the opening, or up to the grammar's end; later ones are checked again as they come."""
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
        """Begin the grammar once the opening is complete."""
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
        """Return the text behind the opening; None without an opening."""
        _, found, rest = self._decode(tokens).partition(self._opening)
        return rest if found else None


def in_full(tokenizer: Tokenizer) -> tuple[Decode, Callable[[str], list[int]]]:
    """Return functions that decode with special tokens, and encode without adding any."""
    return (
        lambda tokens: tokenizer.decode(tokens, skip_special_tokens=False),
        lambda text: tokenizer.encode(text, around=False).ids,
    )


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
