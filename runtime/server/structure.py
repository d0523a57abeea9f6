"""Constrain answers to the structure that a request wants: JSON, an expression, or calls of its tools."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial

from hybridge.errors import GrammarError, UsageError
from hybridge.runtime.artifact.model_info import ModelInfo
from hybridge.runtime.binding.generation import Constraint
from hybridge.runtime.binding.tokenizer import Tokenizer
from hybridge.runtime.server.requests import Function, GenerationRequest, invalid
from hybridge.runtime.text.answers import AnswerFormat
from hybridge.runtime.text.grammars import Grammar, Grammars

log = logging.getLogger(__name__)

Constrain = Callable[[], Constraint]
"""Makes a constraint for one text."""
OBJECT = {"type": "object"}


class Structures:
    """Makes the constraints of requests. The first request waits for the tokenizer to be read."""

    def __init__(self, tokenizer: Tokenizer, info: ModelInfo, form: AnswerFormat) -> None:
        """Read nothing yet. form: writes the calls of tools."""
        self._tokenizer, self._info = tokenizer, info
        self._form: AnswerFormat | None = form
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
            return await self._of_calls(asked.required, "required", asked)
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
        """Return the grammar of a free text with calls; None for a request without tools, and where calls are not checked."""
        if not asked.optional:
            return None
        try:
            await self._ready()
        except UsageError as error:  # the tokenizer has no bytes
            if not self._warned:
                log.warning("calls of tools with tool_choice auto are not checked by the tools' schemas: %s", error)
            self._warned = True
            return None
        return await self._of_calls(asked.optional, "auto", asked)

    async def _of_calls(self, functions: Sequence[Function], choice: str, asked: GenerationRequest) -> Grammar | None:
        """Return the grammar of calls. Raises ApiError with the name of the first tool whose parameters cannot be followed."""
        grammars, form = await self._ready(), self._form
        if form is None and choice == "auto":
            return None
        if form is None:
            raise invalid(
                "tool_choice: the form of this model's calls has no grammar, so that none can be required.", "tool_choice"
            )
        tools = [{"name": each.name, "parameters": each.parameters, "strict": each.strict} for each in functions]
        try:
            return await asyncio.to_thread(grammars.calls, tools, form, choice, single=not asked.is_parallel)
        except GrammarError as error:
            raise invalid(f"tools: {error}", "tools") from None

    async def _ready(self) -> Grammars:
        if self._grammars is None:
            self._grammars = await asyncio.to_thread(self._read)
        return self._grammars

    def _read(self) -> Grammars:
        grammars = Grammars(self._tokenizer, self._info.vocab_size, self._info.eos_ids)
        try:
            if self._form is not None:
                grammars.calls([{"name": "probe"}], self._form)
        except GrammarError as error:
            log.warning("calls of tools are not checked by the tools' schemas: %s", error)
            self._form = None
        return grammars
