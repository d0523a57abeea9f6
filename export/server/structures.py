"""What an answer must look like, by its request."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial

from tokenizers import Tokenizer

from hybridge.cache.errors import GrammarError, UsageError
from hybridge.export.server.call_grammars import CALLS, OBJECT, call_schema
from hybridge.export.server.errors import invalid
from hybridge.export.server.formats import Format
from hybridge.export.server.requests import Function, GenerationRequest
from hybridge.runtime.artifacts.options import Description
from hybridge.runtime.core.generation import Constraint
from hybridge.runtime.structured.grammars import Grammar, Grammars
from hybridge.runtime.structured.lazy import Lazy, behind, in_full

log = logging.getLogger(__name__)

Constrain = Callable[[], Constraint]
"""Makes what one text follows."""


class Structures:
    """Makes the grammars of requests. The first one waits for the tokenizer to be read."""

    def __init__(self, tokenizer: Tokenizer, description: Description, form: Format | None) -> None:
        """form: how the model writes calls and reasoning, if it does."""
        self._tokenizer, self._description, self._form = tokenizer, description, form
        self._grammars: Grammars | None = None
        self._warned = False

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
            return await self._of_calls(asked.required, lambda grammars, each: grammars.json_schema(call_schema(each)))
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
        """What calls must follow that the model makes of its own accord; nothing in forms that no grammar is known of."""
        if not asked.optional or self._form is None or self._form.name not in CALLS:
            return None
        opening, rules = CALLS[self._form.name]
        try:
            await self._ready()
        except UsageError as error:  # without llguidance, or with a tokenizer that it does not take
            self._warn(error)
            return None
        grammar = await self._of_calls(asked.optional, lambda grammars, each: grammars.lark(rules(each)))
        return partial(Lazy, *in_full(self._tokenizer), opening, grammar.follow, again=True)

    async def _of_calls(
        self, functions: Sequence[Function], make: Callable[[Grammars, Sequence[Function]], Grammar]
    ) -> Grammar:
        """Return the grammar of calls. Raises ApiError that names the first tool whose parameters cannot be followed.

        A tool that is not strict by its own words may then be called with any arguments.
        """
        grammars = await self._ready()

        def reason(function: Function) -> str:
            try:
                make(grammars, [function])
            except GrammarError as error:
                return str(error)
            return ""

        def whole() -> Grammar:
            try:
                return make(grammars, functions)
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
            return make(grammars, [_loose(each) if each.name in reasons else each for each in functions])

        return await asyncio.to_thread(whole)

    def _warn(self, error: UsageError) -> None:
        """Say once that calls are not constrained."""
        if not self._warned:
            log.warning("calls of tools that the model makes of its own accord are not held to the tools' schemas: %s", error)
        self._warned = True

    async def _ready(self) -> Grammars:
        if self._grammars is None:
            self._grammars = await asyncio.to_thread(self._read)
        return self._grammars

    def _read(self) -> Grammars:
        return Grammars(self._tokenizer.to_str(), self._description.vocab_size, self._description.eos_ids)


def _loose(function: Function) -> Function:
    """Return a function that takes any arguments."""
    return function.model_copy(update={"parameters": None})
