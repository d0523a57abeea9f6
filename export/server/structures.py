"""What an answer must look like, by its request."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer

from hybridge.export.server.errors import invalid
from hybridge.export.server.requests import Function, GenerationRequest
from hybridge.runtime.artifacts.options import Description
from hybridge.runtime.structured.grammars import Grammar, Grammars

OBJECT = {"type": "object"}


class Structures:
    """Makes the grammars of requests. The first one waits for the tokenizer to be read."""

    def __init__(self, tokenizer: Tokenizer, description: Description) -> None:
        self._tokenizer, self._description = tokenizer, description
        self._grammars: Grammars | None = None

    async def of_request(self, asked: GenerationRequest) -> Grammar | None:
        """Return what the answer must follow; making it does not hold up others. Raises ApiError and UsageError."""
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

    async def _ready(self) -> Grammars:
        if self._grammars is None:
            self._grammars = await asyncio.to_thread(self._read)
        return self._grammars

    def _read(self) -> Grammars:
        return Grammars(self._tokenizer.to_str(), self._description.vocab_size, self._description.eos_ids)


def call_schema(functions: Sequence[Function]) -> dict[str, Any]:
    """Return the schema of one call of one of ``functions``."""
    calls = [
        {"type": "object", "properties": {"name": {"const": each.name}, "arguments": each.parameters or OBJECT},
         "required": ["name", "arguments"], "additionalProperties": False}
        for each in functions
    ]  # fmt: skip
    return {"anyOf": calls}
