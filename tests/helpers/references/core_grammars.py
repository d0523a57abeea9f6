"""Grammars of the native core, and llguidance's over the same tokenizer, which they are compared with."""

from __future__ import annotations

import json
import re
import weakref
from collections.abc import Mapping, Sequence
from ctypes import POINTER, byref, c_float, c_int64, c_size_t, cast
from random import Random
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLTokenizer
from numpy.typing import NDArray

from hybridge.errors import GrammarError
from hybridge.runtime.binding.interface import GrammarHandle, GrammarKind, Tokens
from hybridge.runtime.binding.library import load
from hybridge.runtime.binding.tokenizer import Tokenizer

Mask = NDArray[np.bool_]
LAYOUT = {"whitespace_flexible": False, "key_separator": ": ", "item_separator": ", "}
"""The core's way to write JSON, for llguidance."""
DIGITS = set(b"0123456789abcdefABCDEF")


class CoreGrammar:
    """A JSON schema, as a mapping or as text, or a regular expression, read by ``hybridge_grammar_open``."""

    def __init__(
        self, tokenizer: Tokenizer, eos_ids: Sequence[int], *, schema: Mapping[str, Any] | str | bytes | None = None,
        regex: str | bytes = "",
    ) -> None:  # fmt: skip
        kind = GrammarKind.REGEX if schema is None else GrammarKind.JSON_SCHEMA
        given = regex if schema is None else schema if isinstance(schema, str | bytes) else json.dumps(schema)
        text = given if isinstance(given, bytes) else given.encode("utf-8", "surrogatepass")
        read, self.handle, self._tokenizer = GrammarHandle(), GrammarHandle(), tokenizer
        if load().hybridge_grammar_open(tokenizer.handle, kind, text, len(text), byref(read)):
            raise GrammarError(load().hybridge_failure().decode())
        assert not load().hybridge_grammar_with(
            read, None, 0, (c_int64 * len(eos_ids))(*eos_ids), len(eos_ids), byref(self.handle)
        )
        assert not load().hybridge_grammar_close(read)
        weakref.finalize(self, load().hybridge_grammar_close, self.handle)

    def mask(self, text: Sequence[int], vocab_size: int) -> Mask:
        """Return which tokens may come after a text."""
        given, logits = np.array(text, np.int64), np.zeros(vocab_size, np.float32)
        status = load().hybridge_grammar_mask(
            self.handle, given.ctypes.data_as(Tokens), len(given), cast(logits.ctypes.data, POINTER(c_float)), vocab_size
        )  # fmt: skip
        if status:
            raise GrammarError(load().hybridge_failure().decode())
        allowed: Mask = logits == 0
        return allowed

    def forced(self, text: Sequence[int]) -> list[int]:
        """Return the tokens that come after a text whatever is chosen."""
        given, tokens, count = np.array(text, np.int64), np.zeros(256, np.int64), c_size_t()
        status = load().hybridge_grammar_forced(
            self.handle, given.ctypes.data_as(Tokens), len(given), tokens.ctypes.data_as(Tokens), len(tokens), byref(count)
        )
        assert status == 0
        return tokens[: count.value].tolist()

    def fitting(self, text: Sequence[int], proposed: Sequence[int]) -> int:
        """Return how many of the proposed tokens may come, none of which ends a text."""
        given, further, count = np.array(text, np.int64), np.array(proposed, np.int64), c_size_t()
        status = load().hybridge_grammar_fitting(
            self.handle, given.ctypes.data_as(Tokens), len(given), further.ctypes.data_as(Tokens), len(further), byref(count)
        )
        assert status == 0
        return count.value


class Reference:
    """llguidance for one tokenizer."""

    def __init__(self, tokenizer_json: str, vocab_size: int, eos_id: int) -> None:
        self.vocab_size, self.eos_id = vocab_size, eos_id
        self._tokenizer = LLTokenizer(tokenizer_json, n_vocab=vocab_size, eos_token=[eos_id])

    def matcher(self, *, schema: Mapping[str, Any] | None = None, regex: str = "") -> LLMatcher:
        """Return a matcher at the beginning of a text. Raises ValueError for what it refuses."""
        if schema is None:
            grammar = LLMatcher.grammar_from_regex(regex)
        else:
            grammar = LLMatcher.grammar_from_json_schema(dict(schema), overrides=LAYOUT)
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0)
        if matcher.is_error():
            raise ValueError(matcher.get_error())
        return matcher

    def mask(self, matcher: LLMatcher) -> Mask:
        """Return which tokens may come next."""
        bits = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
        return np.unpackbits(bits, count=self.vocab_size, bitorder="little").view(np.bool_)


def walk(core: CoreGrammar, reference: Reference, matcher: LLMatcher, rng: Random, length: int) -> list[int]:
    """Go a random way by both, and check at each token that they allow the same ones; return the tokens.

    Where llguidance's mask has the one token alone that its tokenizer would write, the core may have others besides, because it
    forces a token only if no longer one of the vocabulary might take its place. In names that a schema leaves open llguidance
    has escapes of all characters by number, of those in the schema's own names as well; the core's are those JSON asks for.
    """
    text: list[int] = []
    for place in range(length):
        if matcher.is_stopped():
            assert not core.mask([*text, reference.eos_id], reference.vocab_size)[: reference.eos_id].any()
            break
        mine, its = core.mask(text, reference.vocab_size), reference.mask(matcher)
        said = bytes(each for each in text if each < 256)
        forced = matcher.compute_ff_tokens()
        if forced:
            assert mine[forced[0]], (text, forced)
            assert core.forced(text) == forced[: len(core.forced(text))]
        elif set(np.flatnonzero(its)) == DIGITS and re.search(rb"\\u[\da-fA-F]{0,3}$", said):
            assert mine.any()
            assert not mine[~its].any()
            its = mine
        else:
            differing = np.flatnonzero(mine != its)
            assert len(differing) == 0, (said, differing[:10], mine[differing[:10]])
        choices = np.flatnonzero(its)
        plain = choices[choices < 128]
        token = int(rng.choice(plain if len(plain) and rng.random() < 0.9 else choices))
        if its[reference.eos_id] and rng.random() < 0.3:
            token = reference.eos_id
        elif place > length // 2:  # towards an end
            token = next((each for each in b'"}]' if its[each]), token)
        text.append(token)
        matcher.consume_token(token)
    return text
