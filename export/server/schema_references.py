"""References inside a JSON schema, kept right when the schema becomes a part of another one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from hybridge.cache.errors import GrammarError

SCHEMA = {
    *("additionalItems", "additionalProperties", "contains", "contentSchema", "else", "if", "items", "not", "propertyNames"),
    *("then", "unevaluatedItems", "unevaluatedProperties"),
}
"""Keywords whose value is a schema, or a list of schemas."""
SCHEMAS = {"allOf", "anyOf", "oneOf", "prefixItems"}
"""Keywords whose value is a list of schemas."""
NAMED = {"dependencies", "dependentSchemas", "patternProperties", "properties"}
"""Keywords whose value has schemas by names. The values of all other keywords are data."""
DEFINITIONS = {"$defs", "definitions"}
"""Keywords that hold what references name; nothing else reads them."""
MOVED = ("$anchor", "$dynamicAnchor", "$recursiveAnchor", "$schema")
"""Keywords that say something of a whole document, which a nested schema is not any more."""

MOST = 20_000
"""Schemas inside schemas that one may come to: definitions may name each other's parts."""


class Nested:
    """Rewrites parts of one schema so that they can stand inside another one.

    Every reference ``#/…`` of the schema becomes ``#/$defs/KEY``, and ``definitions`` gets the schema that it names.
    """

    def __init__(self, whole: Mapping[str, Any], prefix: str) -> None:
        """whole: the schema by whose root references go; prefix: what the keys of its definitions begin with."""
        self.definitions: dict[str, Any] = {}
        self._whole, self._prefix = whole, prefix
        self._keys: dict[int, str] = {}
        self._waiting: dict[str, Any] = {}
        self._rewritten = 0

    def rewrite(self, schema: Any) -> Any:
        """Return a part of the schema with its references rewritten. Raises GrammarError for one that cannot be followed."""
        rewritten = self._part(schema)
        while self._waiting:  # not where they are met: they may name each other in a long row, or themselves
            key, target = self._waiting.popitem()
            self.definitions[key] = self._part(target)
        return rewritten

    def resolve(self, schema: Any) -> Any:
        """Return what a schema is once its reference is followed, and that one's, and so on. Raises GrammarError."""
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
