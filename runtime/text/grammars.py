"""Grammars that a text must follow: JSON schemas, regular expressions and calls by the core, Lark by llguidance."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from ctypes import byref
from typing import Any

from hybridge.errors import GrammarError, UsageError
from hybridge.runtime.artifact.folder import Artifact
from hybridge.runtime.binding.grammar import CoreGrammar
from hybridge.runtime.binding.interface import CText, GrammarHandle, GrammarKind
from hybridge.runtime.binding.library import run
from hybridge.runtime.binding.tokenizer import Tokenizer
from hybridge.runtime.text.answers import AnswerFormat
from hybridge.runtime.text.lark import LarkGrammar

Grammar = CoreGrammar | LarkGrammar


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
        return self._read("open", text, (GrammarKind.JSON_SCHEMA,))

    def regex(self, pattern: str) -> CoreGrammar:
        """Return the grammar of texts that match ``pattern`` as a whole. Raises GrammarError for an invalid expression."""
        return self._read("open", pattern, (GrammarKind.REGEX,))

    def calls(
        self, tools: Sequence[Mapping[str, Any]], form: AnswerFormat, choice: str = "auto", *, single: bool = False
    ) -> CoreGrammar:
        """Return the grammar of calls of tools, as a form of answers writes them.

        Args:
            tools: as in OpenAI's API.
            form: writes the calls.
            choice: "auto" for a text that is free until it opens a call, and free again after the call; "required", or the name
                of a tool, for a text that is calls.
            single: there is one call at most.

        Raises:
            GrammarError: the parameters of a tool cannot be followed.
        """
        return self._read(
            "calls", json.dumps(list(tools)), (form.handle,), (CText("the choice of a tool", choice.encode()), single)
        )

    def lark(self, rules: str) -> LarkGrammar:
        """Return the grammar of ``rules`` in llguidance's variant of Lark, which begin with ``start``.

        Raises:
            GrammarError: the grammar cannot be followed.
            UsageError: llguidance is not installed, or does not take the tokenizer.
        """
        return LarkGrammar(rules, self._tokenizer, self._vocab_size, self._eos_ids)

    def _read(self, call: str, text: str, form: tuple[Any, ...], options: tuple[Any, ...] = ()) -> CoreGrammar:
        data, handle = text.encode("utf-8", "surrogatepass"), GrammarHandle()
        run(f"grammar_{call}", self._tokenizer.handle, *form, data, len(data), *options, byref(handle))
        return CoreGrammar(handle, self._eos_ids)
