"""Constrain answers to the structure that a request wants: JSON, an expression, or calls of its tools."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial

from hybridge.cache.errors import GrammarError, UsageError
from hybridge.runtime.artifacts.options import Description
from hybridge.runtime.core.generation import Constraint
from hybridge.runtime.core.tokenizer import Tokenizer
from hybridge.runtime.server.requests import Function, GenerationRequest, invalid
from hybridge.runtime.text.answers import AnswerFormat
from hybridge.runtime.text.grammars import Grammar, Grammars

log = logging.getLogger(__name__)

Constrain = Callable[[], Constraint]
"""Makes a constraint for one text."""
OBJECT = {"type": "object"}


class Structures:
    """Makes the constraints of requests. The first request waits for the tokenizer to be read."""

    def __init__(self, tokenizer: Tokenizer, description: Description, form: AnswerFormat | None) -> None:
        """Read nothing yet. form: the model's format of calls and reasoning, if it is known."""
        self._tokenizer, self._description = tokenizer, description
        self._form = form if form is not None and form.description["has_grammar"] else None
        self._grammars: Grammars | None = None
        self._warned = False

    async def of_request(self, asked: GenerationRequest, reasoning: str = "") -> Constrain | None:
        """Return the constraint of an answer, made on another thread; None for free text. Raises ApiError and UsageError.

        reasoning: text that ends the reasoning which the prompt has begun, or "".
        """
        grammar = await self._grammar(asked)
        return None if grammar is None else partial(grammar.follow, reasoning)

    async def _grammar(self, asked: GenerationRequest) -> Grammar | None:
        wanted = asked.response_format
        if asked.required:
            return await self._of_calls(asked.required, None)
        if wanted is None or wanted.type == "text":
            return await self._optional_calls(asked)
        if getattr(wanted, wanted.type, OBJECT) is None:
            raise invalid(f"response_format: the type {wanted.type} needs the field {wanted.type}.", "response_format")
        grammars = await self._ready()
        if wanted.type == "regex":
            return await asyncio.to_thread(grammars.regex, wanted.regex or "")
        schema = wanted.json_schema.json_schema if wanted.json_schema is not None else OBJECT
        return await asyncio.to_thread(grammars.json_schema, schema)

    async def _optional_calls(self, asked: GenerationRequest) -> Grammar | None:
        """Return the grammar of a free text with calls; None for formats of calls without a grammar."""
        if not asked.optional or self._form is None:
            return None
        try:
            await self._ready()
        except UsageError as error:  # the tokenizer has no bytes
            if not self._warned:
                log.warning(
                    "calls of tools that the model makes of its own accord are not held to the tools' schemas: %s", error
                )
            self._warned = True
            return None
        return await self._of_calls(asked.optional, self._form)

    async def _of_calls(self, functions: Sequence[Function], form: AnswerFormat | None) -> Grammar:
        """Return the grammar of calls. Raises ApiError with the name of the first tool whose parameters cannot be followed.

        Such a tool is called with any arguments instead if its ``strict`` is false.
        """
        grammars = await self._ready()

        def make(functions: Sequence[Function]) -> Grammar:
            return grammars.calls(
                [{"function": {"name": each.name, "parameters": each.parameters}} for each in functions], form
            )

        def reason(function: Function) -> str:
            try:
                make([function])
            except GrammarError as error:
                return str(error)
            return ""

        def whole() -> Grammar:
            try:
                return make(functions)
            except GrammarError as error:
                reasons = {each.name: said for each in functions if (said := reason(each))}
                strict = next((each.name for each in functions if each.name in reasons and each.strict is not False), None)
                if strict is not None:
                    raise invalid(
                        f"tools: the parameters of {strict} cannot be followed: {reasons[strict]} Or set 'strict' of this "
                        "function to false, to have calls of it with any arguments.", "tools",
                    ) from None  # fmt: skip
                if not reasons:
                    raise invalid(f"tools: {error}", "tools") from None
            return make([_loose(each) if each.name in reasons else each for each in functions])

        return await asyncio.to_thread(whole)

    async def _ready(self) -> Grammars:
        if self._grammars is None:
            self._grammars = await asyncio.to_thread(self._read)
        return self._grammars

    def _read(self) -> Grammars:
        return Grammars(self._tokenizer, self._description.vocab_size, self._description.eos_ids)


def _loose(function: Function) -> Function:
    """Return the function with any arguments."""
    return function.model_copy(update={"parameters": {**OBJECT, "additionalProperties": {}}})
