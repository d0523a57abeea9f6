"""The grammars of calls as families of models write them, from the text that opens a call on."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from hybridge.cache.errors import GrammarError
from hybridge.export.server.requests import Function
from hybridge.export.server.schema_references import Nested
from hybridge.runtime.structured.grammars import LAYOUT

OBJECT = {"type": "object"}
PLAIN = re.compile(r"[^<>\n]+")
"""A parameter's name that can stand in a tag."""
DEEPEST = 16
"""Choices inside choices that are looked into for one that is text."""


def call_schema(functions: Sequence[Function]) -> dict[str, Any]:
    """Return the schema of one call of one of ``functions``. Raises GrammarError for a reference that cannot be followed."""
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
    """Return the grammar of a call in Qwen's XML: parameters in the schema's order, strings as they are, others as JSON.

    Raises GrammarError for what no tag can say.
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
    """Return what matches a parameter that is no text: words of an enumeration stand without quotes."""
    target = _settled(nested, schema)
    words = target.get("enum", [target["const"]] if "const" in target else None) if isinstance(target, Mapping) else None
    if isinstance(words, list) and words and all(isinstance(word, str) for word in words):
        return f"({' | '.join(map(json.dumps, words))})"
    rewritten = nested.rewrite(schema)
    return f"%json {_json({**rewritten, '$defs': nested.definitions} if nested.definitions else rewritten)}"


def _is_text(nested: Nested, schema: Any, depth: int = 0) -> bool:
    """Return whether a parameter may be any text, as far as can be said of it in XML."""
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
    """Return what a schema is once references are followed, and one that stands alone in ``allOf`` is taken out of it."""
    schema = nested.resolve(schema)
    alone = schema.get("allOf") if isinstance(schema, Mapping) else None
    return nested.resolve(alone[0]) if isinstance(alone, list) and len(alone) == 1 else schema


def _object(nested: Nested, schema: Any) -> Mapping[str, Any]:
    """Return the schema of a function's parameters, which is an object's."""
    found = nested.resolve(schema)
    return found if isinstance(found, Mapping) else OBJECT


def with_types(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool as a chat template gets it, with the schemas of its parameters in place of references to them.

    What reads parameters out of XML looks for their types there.
    """
    function = tool["function"]
    whole = function.get("parameters") or OBJECT
    nested = Nested(whole, "")
    try:
        schema = _object(nested, whole)
        properties = schema.get("properties")
        found = {name: _settled(nested, each) for name, each in properties.items()} if isinstance(properties, Mapping) else {}
    except GrammarError:  # a tool that is not strict may have a reference to nowhere
        return dict(tool)
    return {**tool, "function": {**function, "parameters": {**schema, "properties": found}}} if found else dict(tool)


def _json(schema: Mapping[str, Any]) -> str:
    return json.dumps({**schema, "x-guidance": LAYOUT})


CALLS: dict[str, tuple[str, Callable[[Sequence[Function]], str]]] = {
    "hermes": ("<tool_call>", json_call),
    "general": ("<tool_call>", json_call),
    "qwen-xml": ("<tool_call>", xml_calls),
    "granite": ("<|tool_call|>", json_calls),
}
"""By the name of a ``Format``: the text that opens a call, and what makes the grammar of the rest."""
