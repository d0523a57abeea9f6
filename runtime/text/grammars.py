"""Constrain generation to JSON schemas, regular expressions and grammars, by llguidance: from the start or behind reasoning."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridge.cache.errors import GrammarError, UsageError
from hybridge.runtime.artifacts.artifact import Artifact
from hybridge.runtime.core.generation import Constraint
from hybridge.runtime.core.tokenizer import Tokenizer

LAYOUT = {"whitespace_flexible": False, "key_separator": ": ", "item_separator": ", "}
"""The only way to write JSON: with free whitespace fewer tokens are forced, and a model may write it without end."""
LARGEST_GRAMMAR = 1 << 20
"""Most characters of a schema, an expression or a grammar."""
PLACE = re.compile(r"(?:at )?(\d+)\((\d+)\): (.*)")
"""A line, a column and the error there, as llguidance writes them."""
SAID = 300
"""Most characters that are quoted of an error."""
BLANK_LINE = "\n\n"
"""Models write this between reasoning and answer."""

Decode = Callable[[Sequence[int]], str]


class Grammars:
    """Reads schemas, expressions and grammars for one tokenizer. It takes 2 seconds to make for a vocabulary of 250,000."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_ids: Sequence[int]) -> None:
        """Read a tokenizer.

        Args:
            tokenizer: the model's.
            vocab_size: number of logits.
            eos_ids: tokens that end a text.

        Raises:
            UsageError: no token ends a text, or llguidance does not take the tokenizer.
        """
        from llguidance import LLTokenizer

        if not eos_ids:
            raise UsageError("this model has no token that ends a text, so nothing can say that a structure is complete.")
        try:
            self._tokenizer = LLTokenizer(tokenizer.json.decode(), n_vocab=vocab_size, eos_token=list(eos_ids))
        except Exception as error:  # whatever its parser raises
            raise UsageError(f"structured output is not possible with this tokenizer: {str(error)[:SAID]}") from None
        self.vocab_size = vocab_size

    @classmethod
    def of(cls, artifact: Artifact, eos_ids: Sequence[int] | None = None) -> Grammars:
        """Make the grammars of an artifact. eos_ids: tokens that end a text, the model's own if left out. Raises UsageError."""
        if artifact.tokenizer is None:
            raise UsageError(f"{artifact.folder} has no tokenizer.json, which structured output needs.")
        manifest = artifact.manifest
        return cls(Tokenizer.of(artifact), manifest.vocab_size, manifest.eos_ids if eos_ids is None else eos_ids)

    def json_schema(self, schema: Mapping[str, Any]) -> Grammar:
        """Return the grammar of JSON that fits ``schema``. Raises GrammarError if llguidance does not support it."""
        from llguidance import LLMatcher

        return self._checked("JSON schema", lambda: LLMatcher.grammar_from_json_schema(dict(schema), overrides=LAYOUT))

    def regex(self, pattern: str) -> Grammar:
        """Return the grammar of texts that match ``pattern`` as a whole. Raises GrammarError for an invalid expression."""
        from llguidance import LLMatcher

        return self._checked("regular expression", lambda: LLMatcher.grammar_from_regex(pattern))

    def lark(self, rules: str) -> Grammar:
        """Return the grammar of ``rules`` in llguidance's variant of Lark, which begin with ``start``. Raises GrammarError."""
        from llguidance import LLMatcher

        return self._checked("grammar", lambda: LLMatcher.grammar_from_lark(rules))

    def _checked(self, what: str, make: Callable[[], str]) -> Grammar:
        from llguidance import LLMatcher

        try:
            text = make()
            if len(text) > LARGEST_GRAMMAR:
                raise GrammarError(f"this {what} has {len(text)} characters, and {LARGEST_GRAMMAR} are the most there can be.")
            refused, reasons = LLMatcher.validate_grammar_with_warnings(text, self._tokenizer)
        except (ValueError, TypeError, RecursionError) as error:
            if isinstance(error, GrammarError):
                raise
            refused, reasons = True, [str(error)]
        if refused:
            raise GrammarError(f"this {what} cannot be followed: {'; '.join(dict.fromkeys(map(reason, reasons)))[:SAID]}.")
        return Grammar(self._tokenizer, text)


class Grammar:
    """A checked grammar; each text needs a follower of its own."""

    def __init__(self, tokenizer: Any, text: str) -> None:
        self._tokenizer, self._text = tokenizer, text

    def follow(self) -> Follower:
        """Return a constraint for one text, from its first token on."""
        from llguidance import LLMatcher

        return Follower(LLMatcher(self._tokenizer, self._text, log_level=0))


class Follower:
    """A ``Constraint`` of the core that follows one text by a grammar."""

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    def mask(self, logits: NDArray[np.float32]) -> None:
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        self._check()
        allowed = np.unpackbits(bits, count=len(logits), bitorder="little").view(np.bool_)
        if not allowed.any():
            raise GrammarError("the grammar leaves no token to go on with; simplify it.")
        logits[~allowed] = -np.inf

    def take(self, token: int) -> None:
        self._matcher.consume_token(token)
        self._check()

    def forced(self) -> list[int]:
        tokens: list[int] = self._matcher.compute_ff_tokens()
        return tokens

    def fitting(self, tokens: Sequence[int]) -> int:
        return int(self._matcher.validate_tokens(list(tokens)))

    @property
    def ended(self) -> bool:
        """Return whether the text is complete, so that nothing may follow."""
        return bool(self._matcher.is_stopped())

    def _check(self) -> None:
        if self._matcher.is_error():
            raise GrammarError(f"the grammar cannot be followed any further: {reason(self._matcher.get_error())[:SAID]}.")


def reason(said: str) -> str:
    """Return the reason in an error of llguidance, without its state and its form of the grammar."""
    said, state, _ = said.partition("\n<state>")
    if "NoExtensionBias" in said:
        return "no text fits it from here on; it may refer to itself without an end"
    if "too complex" in said.lower() or "too many" in said.lower():
        return "it is too complex; write less of it, with smaller counts and fewer choices"
    if state:
        return said.splitlines()[0].partition(";")[0]
    _, regex, error = said.partition("\nerror: ")  # of the regex parser, behind the expression with an arrow below
    if regex:
        return error.splitlines()[0].rstrip(".")
    first = said.strip().splitlines()[0] if said.strip() else "it says nothing"
    place = PLACE.match(first)
    return f"line {place[1]}, column {place[2]}: {place[3]}".rstrip(".") if place else first.rstrip(".")


class Lazy:
    """A ``Constraint`` that leaves the choice free until the text contains ``opening``, and then follows a grammar.

    A token that has the opening's end and more in it begins the grammar if the grammar allows the rest, or else does not
    count as the opening.
    """

    def __init__(
        self, decode: Decode, encode: Callable[[str], list[int]], opening: str, follow: Callable[[], Follower], *,
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


def behind(end: str, follow: Callable[[], Follower], tokenizer: Tokenizer, eos_ids: Collection[int]) -> Constraint:
    """Return a constraint for a text with reasoning up to ``end`` before the grammar, or without any if ``end`` is empty."""
    if not end:
        return follow()
    decode, encode = in_full(tokenizer)
    return Lazy(decode, encode, end, follow, before=eos_ids, spaces=BLANK_LINE)


def in_full(tokenizer: Tokenizer) -> tuple[Decode, Callable[[str], list[int]]]:
    """Return functions that decode with special tokens, and encode without adding any."""
    return (
        lambda tokens: tokenizer.decode(tokens, skip_special_tokens=False),
        lambda text: tokenizer.encode(text, around=False).ids,
    )


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
