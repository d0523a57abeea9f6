"""The grammars of calls as families of models write them, from the text that opens a call on."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from hybridge.export.server.requests import Function
from hybridge.runtime.structured.grammars import LAYOUT

OBJECT = {"type": "object"}
PLAIN = re.compile(r"[\w.-]+")
"""A parameter's name that can stand in a tag."""


def call_schema(functions: Sequence[Function]) -> dict[str, Any]:
    """Return the schema of one call of one of ``functions``."""
    shared: dict[str, Any] = {}
    arguments = [_own(each.parameters or OBJECT, i, shared) for i, each in enumerate(functions)]
    calls = [
        {"type": "object", "properties": {"name": {"const": each.name}, "arguments": own},
         "required": ["name", "arguments"], "additionalProperties": False}
        for each, own in zip(functions, arguments, strict=True)
    ]  # fmt: skip
    return {"anyOf": calls, **({"$defs": shared} if shared else {})}


def _own(schema: Any, number: int, shared: dict[str, Any]) -> Any:
    """Return a schema whose definitions are in ``shared``, under names of their own: a reference goes by the whole's root."""
    if isinstance(schema, list):
        return [_own(each, number, shared) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    definitions = schema.get("$defs")
    for name, each in definitions.items() if isinstance(definitions, Mapping) else ():
        shared[f"{number}.{name}"] = _own(each, number, shared)
    kept = {name: _own(each, number, shared) for name, each in schema.items() if name != "$defs"}
    if isinstance(to := schema.get("$ref"), str):
        kept["$ref"] = to.replace("#/$defs/", f"#/$defs/{number}.")
    return kept


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

    Raises ValueError for what no tag can say.
    """
    names = " | ".join(f"f{i}" for i in range(len(functions)))
    rules = [rule for i, each in enumerate(functions) for rule in _xml_function(each, f"f{i}")]
    return "\n".join([f'start: "\\n"? "<function=" ({names}) "</function>"', *rules, ""])


def _xml_function(function: Function, rule: str) -> Iterator[str]:
    schema: Mapping[str, Any] = function.parameters or OBJECT
    properties, required = schema.get("properties") or {}, schema.get("required") or []
    if not isinstance(properties, Mapping) or not isinstance(required, list):
        raise ValueError("these are no parameters")
    parts = [f"{rule}_{i}" if name in required else f"{rule}_{i}?" for i, name in enumerate(properties)]
    yield f"{rule}: {' '.join([json.dumps(f'{function.name}>' + chr(10)), *parts])}"
    for i, (name, each) in enumerate(properties.items()):
        if PLAIN.fullmatch(name) is None:
            raise ValueError(f"{name!r} cannot stand in a tag")
        opening = json.dumps(f"<parameter={name}>\n")
        if _is_text(each):
            yield f'{rule}_{i}: {opening} {rule}_{i}_text\n{rule}_{i}_text[suffix="\\n</parameter>\\n"]: /(.|\\n)*/'
        else:
            value = {**each, **({"$defs": schema["$defs"]} if "$defs" in schema else {})}
            yield f'{rule}_{i}: {opening} {_value(each, value)} "\\n</parameter>\\n"'


def _value(schema: Mapping[str, Any], whole: Mapping[str, Any]) -> str:
    """Return what matches a parameter that is no text: words of an enumeration stand without quotes."""
    words = schema.get("enum")
    if isinstance(words, list) and words and all(isinstance(word, str) for word in words):
        return f"({' | '.join(map(json.dumps, words))})"
    return f"%json {_json(whole)}"


def _is_text(schema: Any) -> bool:
    """Return whether a parameter may be any text, as far as can be said of it in XML."""
    if not isinstance(schema, Mapping) or "enum" in schema:
        return not isinstance(schema, Mapping)
    kind = schema.get("type")
    return kind is None or kind == "string" or (isinstance(kind, list) and "string" in kind)


def _json(schema: Mapping[str, Any]) -> str:
    return json.dumps({**schema, "x-guidance": LAYOUT})


CALLS: dict[str, tuple[str, Callable[[Sequence[Function]], str]]] = {
    "hermes": ("<tool_call>", json_call),
    "qwen-xml": ("<tool_call>", xml_calls),
    "granite": ("<|tool_call|>", json_calls),
}
"""By the name of a ``Format``: the text that opens a call, and what makes the grammar of the rest."""
