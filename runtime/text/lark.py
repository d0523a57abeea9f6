"""Grammars in Lark's syntax, by llguidance, which the extra ``lark`` brings."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridge.errors import GrammarError, UsageError
from hybridge.runtime.binding.tokenizer import Tokenizer

LARGEST_GRAMMAR = 1 << 20
"""Most characters of a grammar."""
PLACE = re.compile(r"(?:at )?(\d+)\((\d+)\): (.*)")
"""A line, a column and the error there, as llguidance writes them."""
SAID = 300
"""Most characters that are quoted of an error."""


class LarkGrammar:
    """A checked grammar; each text needs a follower of its own."""

    def __init__(self, rules: str, tokenizer: Tokenizer, vocab_size: int, eos_ids: Sequence[int]) -> None:
        """Check a grammar.

        Args:
            rules: in llguidance's variant of Lark; the first one is ``start``.
            tokenizer: the model's.
            vocab_size: number of logits.
            eos_ids: tokens that end a text.

        Raises:
            GrammarError: the grammar cannot be followed.
            UsageError: llguidance is not installed, or does not take the tokenizer.
        """
        try:
            from llguidance import LLTokenizer
        except ImportError:
            raise UsageError("a Lark grammar needs llguidance, which is not installed: pip install 'hybridge[lark]'.") from None
        try:
            self._tokenizer = LLTokenizer(tokenizer.json.decode(), n_vocab=vocab_size, eos_token=list(eos_ids))
        except Exception as error:  # whatever its parser raises
            raise UsageError(f"a Lark grammar is not possible with this tokenizer: {str(error)[:SAID]}") from None
        self._rules, self._special = rules, set(tokenizer.added_tokens(special=True).values())
        if len(rules) > LARGEST_GRAMMAR:
            raise GrammarError(f"this grammar has {len(rules)} characters, and {LARGEST_GRAMMAR} are the most there can be.")
        self._check(self._text(""))

    def follow(self, after: str = "") -> LarkFollower:
        """Return a constraint for one text. after: a text such as the end of a reasoning, after which the grammar begins."""
        from llguidance import LLMatcher

        return LarkFollower(LLMatcher(self._tokenizer, self._text(after), log_level=0))

    def _text(self, after: str) -> str:
        """Return the grammar for llguidance: after any text that ends with ``after`` and a blank line, if there is one."""
        grammars = [{"name": "answer", "lark_grammar": self._rules}]
        if after:
            mark = json.dumps(after)
            end = f"thought: /(.|\\n)*/ {after}" if after in self._special else f"thought[suffix={mark}]: /(.|\\n)*/"
            grammars.insert(0, {"lark_grammar": f'start: thought "\\n\\n"? @answer\n{end}\n'})
        return json.dumps({"grammars": grammars})

    def _check(self, text: str) -> None:
        from llguidance import LLMatcher

        try:
            refused, reasons = LLMatcher.validate_grammar_with_warnings(text, self._tokenizer)
        except (ValueError, TypeError, RecursionError) as error:
            refused, reasons = True, [str(error)]
        if refused:
            raise GrammarError(f"this grammar cannot be followed: {'; '.join(dict.fromkeys(map(reason, reasons)))[:SAID]}.")


class LarkFollower:
    """A ``Constraint`` of the core that follows one text by llguidance."""

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
    _, regex, error = said.partition("\nerror: ")  # of the regex parser, after the expression with an arrow below
    if regex:
        return error.splitlines()[0].rstrip(".")
    first = said.strip().splitlines()[0] if said.strip() else "it says nothing"
    place = PLACE.match(first)
    return f"line {place[1]}, column {place[2]}: {place[3]}".rstrip(".") if place else first.rstrip(".")
