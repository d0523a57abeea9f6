"""What an answer must look like, by its request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from tokenizers import Tokenizer

from hybridge.cache.errors import GrammarError, UsageError
from hybridge.export.server.call_grammars import CALLS, OBJECT, call_schema
from hybridge.export.server.errors import invalid
from hybridge.export.server.formats import Format
from hybridge.export.server.requests import GenerationRequest
from hybridge.runtime.artifacts.options import Description
from hybridge.runtime.generation.constraint import Constraint
from hybridge.runtime.structured.grammars import Grammar, Grammars
from hybridge.runtime.structured.lazy import Lazy, behind, in_full

Constrain = Callable[[], Constraint]
"""Makes what one text follows."""


class Structures:
    """Makes the grammars of requests. The first one waits for the tokenizer to be read."""

    def __init__(self, tokenizer: Tokenizer, description: Description, form: Format | None) -> None:
        """form: how the model writes calls and reasoning, if it does."""
        self._tokenizer, self._description, self._form = tokenizer, description, form
        self._grammars: Grammars | None = None

    async def of_request(self, asked: GenerationRequest, reasoning: str = "") -> Constrain | None:
        """Return what the answer must follow; making it does not hold up others. Raises ApiError and UsageError.

        reasoning: the text that ends the reasoning which comes before the answer, if any does.
        """
        grammar = await self._whole(asked)
        if grammar is None:
            return await self._calls(asked)
        return partial(behind, reasoning, grammar.follow, self._tokenizer, self._description.eos_ids)

    async def _whole(self, asked: GenerationRequest) -> Grammar | None:
        """The grammar of all of an answer, if it has one."""
        wanted = asked.response_format
        if asked.required:
            grammars = await self._ready()
            return await asyncio.to_thread(grammars.json_schema, call_schema(asked.required))
        if wanted is None or wanted.type == "text":
            return None
        if getattr(wanted, wanted.type, OBJECT) is None:
            raise invalid(f"response_format: the type {wanted.type} needs the field {wanted.type}.", "response_format")
        grammars = await self._ready()
        if wanted.type == "regex":
            return await asyncio.to_thread(grammars.regex, wanted.regex or "")
        schema = wanted.json_schema.json_schema if wanted.json_schema is not None else OBJECT
        return await asyncio.to_thread(grammars.json_schema, schema)

    async def _calls(self, asked: GenerationRequest) -> Constrain | None:
        """What calls must follow that the model makes of its own accord; nothing where no grammar can say it."""
        if not asked.optional or self._form is None or self._form.name not in CALLS:
            return None
        opening, rules = CALLS[self._form.name]
        try:
            grammars = await self._ready()
            grammar = await asyncio.to_thread(grammars.lark, rules(asked.optional))
        except (GrammarError, UsageError, ValueError):
            return None
        return partial(Lazy, *in_full(self._tokenizer), opening, grammar.follow, again=True)

    async def _ready(self) -> Grammars:
        if self._grammars is None:
            self._grammars = await asyncio.to_thread(self._read)
        return self._grammars

    def _read(self) -> Grammars:
        return Grammars(self._tokenizer.to_str(), self._description.vocab_size, self._description.eos_ids)
