"""Constrain answers to the structure that a request wants: JSON, an expression, or calls of its tools."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import unquote

from hybridge.cache.errors import GrammarError, UsageError
from hybridge.runtime.artifacts.options import Description
from hybridge.runtime.core.generation import Constraint
from hybridge.runtime.core.tokenizer import Tokenizer
from hybridge.runtime.server.requests import Function, GenerationRequest, invalid
from hybridge.runtime.text.answers import AnswerFormat
from hybridge.runtime.text.grammars import Grammar, Grammars, Lazy, in_full
from hybridge.runtime.text.lark import LarkGrammar

log = logging.getLogger(__name__)

Constrain = Callable[[], Constraint]
"""Makes a constraint for one text."""


class Structures:
    """Makes the constraints of requests. The first request waits for the tokenizer to be read."""

    def __init__(self, tokenizer: Tokenizer, description: Description, form: AnswerFormat | None) -> None:
        """Read nothing yet. form: the model's format of calls and reasoning, if it is known."""
        self._tokenizer, self._description, self._form = tokenizer, description, form
        self._grammars: Grammars | None = None
        self._warned = False

    async def of_request(self, asked: GenerationRequest, reasoning: str = "") -> Constrain | None:
        """Return the constraint of an answer, made on another thread; None for free text. Raises ApiError and UsageError.

        reasoning: text that ends the reasoning before the answer, if there is any.
        """
        grammar = await self._whole(asked)
        if grammar is None:
            return await self._calls(asked)
        return partial(grammar.follow, reasoning)

    async def _whole(self, asked: GenerationRequest) -> Grammar | None:
        """Return the grammar of the whole answer, if there is one."""
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
        """Return the constraint of optional calls; None for formats of calls without a grammar."""
        if not asked.optional or self._form is None or self._form.name not in CALLS:
            return None
        opening, rules = CALLS[self._form.name]
        try:
            grammar = await self._of_calls(asked.optional, lambda grammars, each: grammars.lark(rules(each)))
        except GrammarError:
            raise
        except UsageError as error:  # there is no llguidance, or it does not take the tokenizer
            self._warn(error)
            return None
        assert isinstance(grammar, LarkGrammar)
        return partial(Lazy, *in_full(self._tokenizer), opening, grammar.follow, again=True)

    async def _of_calls(
        self, functions: Sequence[Function], make: Callable[[Grammars, Sequence[Function]], Grammar]
    ) -> Grammar:
        """Return the grammar of calls. Raises ApiError with the name of the first tool whose parameters cannot be followed.

        Such a tool is called with any arguments instead if its ``strict`` is false.
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
        """Warn once that calls are not constrained."""
        if not self._warned:
            log.warning("calls of tools that the model makes of its own accord are not held to the tools' schemas: %s", error)
        self._warned = True

    async def _ready(self) -> Grammars:
        if self._grammars is None:
            self._grammars = await asyncio.to_thread(self._read)
        return self._grammars

    def _read(self) -> Grammars:
        return Grammars(self._tokenizer, self._description.vocab_size, self._description.eos_ids)


def _loose(function: Function) -> Function:
    """Return the function with any arguments."""
    return function.model_copy(update={"parameters": None})


# Grammars of calls in the formats of families of models, behind the text that opens a call


OBJECT = {"type": "object"}
LAYOUT = {"whitespace_flexible": False, "key_separator": ": ", "item_separator": ", "}
PLAIN = re.compile(r"[^<>\n]+")
"""Names of parameters that can be in a tag."""
DEEPEST = 16
"""Levels of alternatives that are searched for text."""


def call_schema(functions: Sequence[Function]) -> dict[str, Any]:
    """Return the schema of a call of one of ``functions``. Raises GrammarError for a reference that cannot be resolved."""
    calls, shared = [], dict[str, Any]()
    for i, each in enumerate(functions):
        own = each.parameters or OBJECT
        nested = Nested(own, f"{i}.")
        calls.append(
            {"type": "object", "properties": {"name": {"const": each.name}, "arguments": nested.rewrite(own)},
             "required": ["name", "arguments"], "additionalProperties": False}
        )  # fmt: skip
        shared |= nested.definitions
    return {"anyOf": calls, **({"$defs": shared} if shared else {})}


def json_call(functions: Sequence[Function]) -> str:
    """Return the grammar of a call in JSON."""
    return f'start: "\\n"? call\ncall: %json {_json(call_schema(functions))}\n'


def json_calls(functions: Sequence[Function]) -> str:
    """Return the grammar of a list of calls in JSON."""
    schema = call_schema(functions)
    shared = {"$defs": schema.pop("$defs")} if "$defs" in schema else {}
    return f"start: calls\ncalls: %json {_json({'type': 'array', 'minItems': 1, 'items': schema, **shared})}\n"


def xml_calls(functions: Sequence[Function]) -> str:
    """Return the grammar of a call in Qwen's XML: parameters in the schema's order, strings verbatim, others as JSON.

    Raises GrammarError for parameters that no tag can express.
    """
    names = " | ".join(f"f{i}" for i in range(len(functions)))
    rules = [rule for i, each in enumerate(functions) for rule in _xml_function(each, f"f{i}")]
    return "\n".join([f'start: "\\n"? "<function=" ({names}) "</function>"', *rules, ""])


def _xml_function(function: Function, rule: str) -> Iterator[str]:
    schema: Mapping[str, Any] = function.parameters or OBJECT
    nested = Nested(schema, "")
    schema = _object(nested, schema)
    properties, required = schema.get("properties") or {}, schema.get("required") or []
    if not isinstance(properties, Mapping) or not isinstance(required, list):
        raise GrammarError("'properties' must be an object and 'required' a list.")
    parts = [f"{rule}_{i}" if name in required else f"{rule}_{i}?" for i, name in enumerate(properties)]
    yield f"{rule}: {' '.join([json.dumps(f'{function.name}>' + chr(10)), *parts])}"
    for i, (name, each) in enumerate(properties.items()):
        if PLAIN.fullmatch(name) is None:
            raise GrammarError(
                f"the parameter {name[:80]!r} cannot stand in a tag of this model's calls: give it another name."
            )
        opening = json.dumps(f"<parameter={name}>\n")
        if _is_text(nested, each):
            yield f'{rule}_{i}: {opening} {rule}_{i}_text\n{rule}_{i}_text[suffix="\\n</parameter>\\n"]: /(.|\\n)*/'
        else:
            yield f'{rule}_{i}: {opening} {_value(nested, each)} "\\n</parameter>\\n"'


def _value(nested: Nested, schema: Any) -> str:
    """Return the rule of a parameter that is not text; words of an enumeration have no quotes."""
    target = _settled(nested, schema)
    words = target.get("enum", [target["const"]] if "const" in target else None) if isinstance(target, Mapping) else None
    if isinstance(words, list) and words and all(isinstance(word, str) for word in words):
        return f"({' | '.join(map(json.dumps, words))})"
    rewritten = nested.rewrite(schema)
    return f"%json {_json({**rewritten, '$defs': nested.definitions} if nested.definitions else rewritten)}"


def _is_text(nested: Nested, schema: Any, depth: int = 0) -> bool:
    """Return whether a parameter may be any text, as far as XML can express it."""
    schema = _settled(nested, schema)
    if not isinstance(schema, Mapping):
        return True
    if "enum" in schema or "const" in schema or depth > DEEPEST:
        return False
    kind = schema.get("type")
    choices = [each for name in ("anyOf", "oneOf") if isinstance(schema.get(name), list) for each in schema[name]]
    if kind is None and choices:
        return any(_is_text(nested, each, depth + 1) for each in choices)
    return kind is None or kind == "string" or (isinstance(kind, list) and "string" in kind)


def _settled(nested: Nested, schema: Any) -> Any:
    """Return a schema with its reference resolved, and a single schema taken out of ``allOf``."""
    schema = nested.resolve(schema)
    alone = schema.get("allOf") if isinstance(schema, Mapping) else None
    return nested.resolve(alone[0]) if isinstance(alone, list) and len(alone) == 1 else schema


def _object(nested: Nested, schema: Any) -> Mapping[str, Any]:
    """Return the schema of a function's parameters, with its reference resolved."""
    found = nested.resolve(schema)
    return found if isinstance(found, Mapping) else OBJECT


def _json(schema: Mapping[str, Any]) -> str:
    return json.dumps({**schema, "x-guidance": LAYOUT})


CALLS: dict[str, tuple[str, Callable[[Sequence[Function]], str]]] = {
    "hermes": ("<tool_call>", json_call),
    "general": ("<tool_call>", json_call),
    "qwen-xml": ("<tool_call>", xml_calls),
    "granite": ("<|tool_call|>", json_calls),
}
"""By the name of an ``AnswerFormat``: the text that opens a call, and the function that makes the grammar of the rest."""


# References inside a JSON schema that becomes a part of another one


SCHEMA = {
    *("additionalItems", "additionalProperties", "contains", "contentSchema", "else", "if", "items", "not", "propertyNames"),
    *("then", "unevaluatedItems", "unevaluatedProperties"),
}
"""Keywords whose value is a schema, or a list of schemas."""
SCHEMAS = {"allOf", "anyOf", "oneOf", "prefixItems"}
"""Keywords whose value is a list of schemas."""
NAMED = {"dependencies", "dependentSchemas", "patternProperties", "properties"}
"""Keywords whose value has schemas by names. Values of all other keywords are data."""
DEFINITIONS = {"$defs", "definitions"}
"""Keywords that hold the targets of references, and nothing else."""
MOVED = ("$anchor", "$dynamicAnchor", "$recursiveAnchor", "$schema")
"""Keywords of a whole document, which a nested schema no longer is."""

MOST = 20_000
"""Most schemas inside one, with its definitions, which may contain each other."""


class Nested:
    """Rewrites parts of one schema so that they can stand inside another one.

    Every reference ``#/…`` of the schema becomes ``#/$defs/KEY``, and ``definitions`` gets the schema that it names.
    """

    def __init__(self, whole: Mapping[str, Any], prefix: str) -> None:
        """Begin with no definitions. whole: the schema whose root references start from. prefix: of the definitions' keys."""
        self.definitions: dict[str, Any] = {}
        self._whole, self._prefix = whole, prefix
        self._keys: dict[int, str] = {}
        self._waiting: dict[str, Any] = {}
        self._rewritten = 0

    def rewrite(self, schema: Any) -> Any:
        """Return a part of the schema with its references rewritten. Raises GrammarError if one cannot be resolved."""
        rewritten = self._part(schema)
        while self._waiting:  # not recursively: they may form long chains, or loops
            key, target = self._waiting.popitem()
            self.definitions[key] = self._part(target)
        return rewritten

    def resolve(self, schema: Any) -> Any:
        """Return the schema at the end of a chain of references. Raises GrammarError."""
        seen = set[int]()
        while isinstance(schema, Mapping) and "$ref" in schema and id(schema) not in seen:
            seen.add(id(schema))
            schema = self._target(schema["$ref"])
        return schema

    def _part(self, schema: Any) -> Any:
        if not isinstance(schema, Mapping):
            return schema
        if "$id" in schema and schema is not self._whole:
            raise GrammarError("a schema with an '$id' of its own inside another one is not supported: leave '$id' out.")
        self._rewritten += 1
        if self._rewritten > MOST:
            raise GrammarError(f"with what its references name it has more than {MOST} schemas; simplify it.")
        kept = {name: each for name, each in schema.items() if name not in {*DEFINITIONS, *MOVED, "$id"}}
        return {name: self._value(name, each) for name, each in kept.items()}

    def _value(self, name: str, value: Any) -> Any:
        if name == "$ref":
            return f"#/$defs/{self._key(value)}"
        if name in NAMED and isinstance(value, Mapping):
            return {each: self._part(schema) for each, schema in value.items()}
        if name in SCHEMA | SCHEMAS and isinstance(value, list):
            return [self._part(each) for each in value]
        return self._part(value) if name in SCHEMA else value

    def _key(self, reference: Any) -> str:
        """Return the key of the definition that a reference names."""
        target = self._target(reference)
        if id(target) not in self._keys:
            self._keys[id(target)] = key = f"{self._prefix}{len(self._keys)}"
            self._waiting[key] = target
        return self._keys[id(target)]

    def _target(self, reference: Any) -> Any:
        """Return the schema that a reference names."""
        if not isinstance(reference, str):
            raise GrammarError(f"a '$ref' must be a text such as '#/$defs/name', not {str(reference)[:40]!r}.")
        own = self._whole.get("$id")
        pointer = reference.removeprefix(own.rstrip("#")) if isinstance(own, str) else reference
        if pointer not in ("", "#") and not pointer.startswith("#/"):
            raise GrammarError(f"'$ref': {reference[:80]!r} is not inside its own schema: write it as '#/$defs/name'.")
        found: Any = self._whole
        for part in unquote(pointer).split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and name.isdecimal() and int(name) < len(found):
                found = found[int(name)]
            elif isinstance(found, Mapping) and name in found:
                found = found[name]
            else:
                found = None
                break
        if not isinstance(found, Mapping | bool):
            raise GrammarError(f"'$ref': there is no schema at {reference[:80]!r}: it goes by the root of its own schema.")
        return found
