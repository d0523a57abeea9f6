"""Random schemas of tools' parameters as pydantic, zod and dataclasses write them, and whether a value fits one."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from random import Random
from typing import Any

WORDS = ("c", "f", "null", "None", "true", "False", "5", "-0.5", "007", '"quoted"', "two words", "é", "{}", "", "<b>", "a\nb")
PATTERNS = (r"^[a-z]{2,4}$", r"^\d{3}$", r"^(yes|no)$", r"[0-9]-", r"^[A-Z]?x*$")
TYPES = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: is_number(value) and value == int(value),
    "number": lambda value: is_number(value),
    "string": lambda value: isinstance(value, str),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}


def is_number(value: Any) -> bool:
    """Return whether a value is a number, which a boolean is not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def parameters(rng: Random) -> dict[str, Any]:
    """Return the schema of a tool's parameters."""
    names = rng.sample(["a", "b", "some_name", "c-d", "e"], rng.randint(0, 3))
    root: dict[str, Any] = {"type": "object", "properties": {name: one(rng, 2) for name in names}}
    root["required"] = [name for name in names if rng.random() < 0.6]
    if rng.random() < 0.6:
        root["additionalProperties"] = False if rng.random() < 0.7 else one(rng, 1)
    if rng.random() < 0.15:
        root["patternProperties"] = {"^x[0-9]": one(rng, 1)}
    root["$defs"] = {"Kind": {"enum": rng.sample(WORDS, 3), "type": "string"}, "Point": point(rng), "Any": one(rng, 0)}
    match rng.randrange(8):
        case 0:
            root["$defs"]["Root"] = {key: root.pop(key) for key in list(root) if key not in ("$defs", "type")}
            root["allOf"] = [{"$ref": "#/$defs/Root"}]
        case 1:
            root["anyOf"] = [
                {"type": "object", "properties": {"tag": {"const": tag}, "more": one(rng, 1)}, "required": ["tag"]}
                for tag in rng.sample(["one", "two", 3, None], 2)
            ]
    return root


def point(rng: Random) -> dict[str, Any]:
    number = {"type": rng.choice(["integer", "number"])}
    return {"type": "object", "properties": {"x": number, "y": number}, "required": ["x"], "additionalProperties": False}


def one(rng: Random, depth: int) -> Any:
    """Return a schema of a value."""
    simple = (
        lambda: {"type": "string"},
        lambda: {"type": "string", "minLength": rng.randint(0, 2), "maxLength": rng.randint(2, 5)},
        lambda: {"type": "string", "pattern": rng.choice(PATTERNS)},
        lambda: {"type": "integer", "minimum": rng.randint(-3, 3), "maximum": rng.randint(3, 50)},
        lambda: {"type": rng.choice(["integer", "number", "boolean", "null"])},
        lambda: {"enum": rng.sample(WORDS, rng.randint(1, 4)), "type": "string"},
        lambda: {"enum": rng.sample([*WORDS, None, 5, 1.5, True, -1], rng.randint(1, 5))},
        lambda: {"const": rng.choice([*WORDS, None, 5, 1.5, True])},
        lambda: {"type": rng.sample(["string", "integer", "null", "boolean", "number"], 2)},
        dict,
    )
    if depth == 0:
        return rng.choice(simple)()
    nested = (
        lambda: {"anyOf": [one(rng, depth - 1), {"type": "null"}]},
        lambda: {"anyOf": [one(rng, depth - 1) for _ in range(rng.randint(1, 3))]},
        lambda: {"$ref": "#/$defs/" + rng.choice(["Kind", "Point", "Any"])},
        lambda: {"allOf": [{"$ref": "#/$defs/" + rng.choice(["Kind", "Point"])}], "description": "as pydantic 1 wrote it"},
        lambda: {"type": "array", "items": one(rng, depth - 1), "maxItems": 2},
        lambda: point(rng),
        lambda: {"type": "object", "additionalProperties": one(rng, 0), "maxProperties": 2},
    )
    return rng.choice(simple + nested)()


def fits(schema: Any, value: Any, root: Any) -> bool:
    """Return whether a value fits a schema of the kinds above."""
    if isinstance(schema, bool):
        return schema
    if "$ref" in schema and not fits(root["$defs"][schema["$ref"].removeprefix("#/$defs/")], value, root):
        return False
    kinds = schema.get("type", [])
    if kinds and not any(TYPES[kind](value) for kind in ([kinds] if isinstance(kinds, str) else kinds)):
        return False
    if not all(fits(each, value, root) for each in schema.get("allOf", ())):
        return False
    if "anyOf" in schema and not any(fits(each, value, root) for each in schema["anyOf"]):
        return False
    literals = schema["enum"] if "enum" in schema else [schema["const"]] if "const" in schema else None
    if literals is not None and not any(same(each, value) for each in literals):
        return False
    if isinstance(value, str):
        return schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", 10**9) and (
            "pattern" not in schema
            or re.search(schema["pattern"].replace(r"\d", "[0-9]").replace("$", r"\Z"), value) is not None
        )
    if is_number(value):
        return bool(schema.get("minimum", -math.inf) <= value <= schema.get("maximum", math.inf))
    if isinstance(value, list):
        return len(value) <= schema.get("maxItems", 10**9) and all(fits(schema.get("items", {}), each, root) for each in value)
    return not isinstance(value, dict) or _object_fits(schema, value, root)


def _object_fits(schema: Mapping[str, Any], value: Mapping[str, Any], root: Any) -> bool:
    if not set(schema.get("required", ())) <= value.keys() or len(value) > schema.get("maxProperties", 10**9):
        return False
    properties, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    for name, each in value.items():
        matching = [other for pattern, other in patterns.items() if re.search(pattern, name)]
        wanted = [*([properties[name]] if name in properties else []), *matching] or [schema.get("additionalProperties", {})]
        if not all(fits(other, each, root) for other in wanted):
            return False
    return True


def same(one: Any, other: Any) -> bool:
    """Return whether two values are the same one in JSON, where a boolean is no number."""
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)
