"""Grammars over a model's tokens: llguidance's."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridge.cache.errors import GrammarError, UsageError
from hybridge.runtime.artifacts.artifact import Artifact
from hybridge.runtime.artifacts.tokenizer import tokenizer_of

LAYOUT = {"whitespace_flexible": False, "key_separator": ": ", "item_separator": ", "}
"""How JSON is written, in one way alone: else less is forced, and a model may write whitespace without end."""
LARGEST = 1 << 20
"""Characters of a schema, an expression or a grammar."""
PLACE = re.compile(r"(?:at )?(\d+)\((\d+)\): (.*)")
"""A line and a column, and what is wrong there."""
SAID = 300
"""Characters of what llguidance says of an error."""


class Grammars:
    """Reads schemas, expressions and grammars for one tokenizer. With a vocabulary of 250,000, making it takes 2 seconds."""

    def __init__(self, tokenizer: str, vocab_size: int, eos_ids: Sequence[int]) -> None:
        """tokenizer: the text of tokenizer.json. Raises UsageError for a model whose texts have no end, and for a
        tokenizer that llguidance does not take.
        """
        from llguidance import LLTokenizer

        if not eos_ids:
            raise UsageError("this model has no token that ends a text, so nothing can say that a structure is complete.")
        try:
            self._tokenizer = LLTokenizer(tokenizer, n_vocab=vocab_size, eos_token=list(eos_ids))
        except Exception as error:  # whatever its parser raises
            raise UsageError(f"structured output is not possible with this tokenizer: {str(error)[:SAID]}") from None
        self.vocab_size = vocab_size

    @classmethod
    def of(cls, artifact: Artifact, eos_ids: Sequence[int] | None = None) -> Grammars:
        """Make the grammars of an artifact. eos_ids: what ends a text, the model's own if left out. Raises UsageError."""
        if artifact.tokenizer is None:
            raise UsageError(f"{artifact.folder} has no tokenizer.json, which structured output needs.")
        manifest = artifact.manifest
        return cls(tokenizer_of(artifact).to_str(), manifest.vocab_size, manifest.eos_ids if eos_ids is None else eos_ids)

    def json_schema(self, schema: Mapping[str, Any]) -> Grammar:
        """Return the grammar of JSON that fits ``schema``. Raises GrammarError for one that llguidance does not take."""
        from llguidance import LLMatcher

        return self._checked("JSON schema", lambda: LLMatcher.grammar_from_json_schema(dict(schema), overrides=LAYOUT))

    def regex(self, pattern: str) -> Grammar:
        """Return the grammar of texts that match ``pattern`` as a whole. Raises GrammarError for what is no expression."""
        from llguidance import LLMatcher

        return self._checked("regular expression", lambda: LLMatcher.grammar_from_regex(pattern))

    def lark(self, rules: str) -> Grammar:
        """Return a grammar of llguidance's variant of Lark's syntax, whose first rule is ``start``. Raises GrammarError."""
        from llguidance import LLMatcher

        return self._checked("grammar", lambda: LLMatcher.grammar_from_lark(rules))

    def _checked(self, what: str, make: Callable[[], str]) -> Grammar:
        from llguidance import LLMatcher

        try:
            text = make()
            if len(text) > LARGEST:
                raise GrammarError(f"this {what} has {len(text)} characters, and {LARGEST} are the most there can be.")
            refused, reasons = LLMatcher.validate_grammar_with_warnings(text, self._tokenizer)
        except (ValueError, TypeError, RecursionError) as error:
            if isinstance(error, GrammarError):
                raise
            refused, reasons = True, [str(error)]
        if refused:
            raise GrammarError(f"this {what} cannot be followed: {'; '.join(dict.fromkeys(map(reason, reasons)))[:SAID]}.")
        return Grammar(self._tokenizer, text)


class Grammar:
    """A grammar that was checked; each text needs a follower of its own."""

    def __init__(self, tokenizer: Any, text: str) -> None:
        self._tokenizer, self._text = tokenizer, text

    def follow(self) -> Follower:
        """Return what follows a text from its first token on."""
        from llguidance import LLMatcher

        return Follower(LLMatcher(self._tokenizer, self._text, log_level=0))


class Follower:
    """See ``hybridge.runtime.core.generation.Constraint``."""

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
        """Return whether the text is complete and nothing may follow it."""
        return bool(self._matcher.is_stopped())

    def _check(self) -> None:
        if self._matcher.is_error():
            raise GrammarError(f"the grammar cannot be followed any further: {reason(self._matcher.get_error())[:SAID]}.")


def reason(said: str) -> str:
    """Return what is wrong of an error of llguidance's, without its state and without what it made of the grammar."""
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
