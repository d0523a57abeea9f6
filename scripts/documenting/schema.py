"""The page of manifest.json, from the models that check it."""

from __future__ import annotations

import json
from typing import Any

from documenting.markdown import fence, table
from hybridge.runtime.artifacts.manifest import Manifest

HEAD = """# manifest.json

[The artifact](../artifact.md#manifestjson) says what the file is for. Each object below has exactly these fields; an unknown
one, another type or a number beyond its limits is refused. The file has one field more, `checksum`: the SHA-256 of the
others as JSON with sorted keys and without spaces.

"""
LIMITS = {
    "minimum": "≥ {}",
    "maximum": "≤ {}",
    "maxLength": "at most {} characters",
    "maxItems": "at most {}",
    "minItems": "at least {}",
    "maxProperties": "at most {}",
    "pattern": "`{}`",
    "description": "{}",
}


def page() -> str:
    """Return the Markdown of all objects, and the JSON schema that programs read."""
    schema = Manifest.model_json_schema()
    parts = {"Manifest": schema, **schema["$defs"]}
    return HEAD + "\n".join([*(_object(name, each) for name, each in parts.items()), _whole(schema)])


def _object(name: str, schema: dict[str, Any]) -> str:
    required = schema.get("required", ())
    rows = [
        (f"`{field}`", _type(each), "required" if field in required else _default(each), _limits(each))
        for field, each in schema["properties"].items()
    ]
    text = schema.get("description", "").replace("``", "`")
    return f"## {name}\n\n{text}\n\n{table(('field', 'type', '', ''), rows)}"


def _type(each: dict[str, Any]) -> str:
    if "$ref" in each:
        name = each["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if choices := each.get("enum") or ([each["const"]] if "const" in each else None):
        return " or ".join(f"`{json.dumps(value)}`" for value in choices)
    if kinds := each.get("anyOf"):
        return " or ".join(map(_type, kinds))
    if each.get("type") == "array":
        return f"list of {_type(each.get('items', {}))}"
    if each.get("type") == "object":
        return f"object of {_type(each.get('additionalProperties', {}))}"
    return str(each.get("type", "any"))


def _default(each: dict[str, Any]) -> str:
    return f"`{json.dumps(each['default'])}` if left out" if "default" in each else "may be left out"


def _limits(each: dict[str, Any]) -> str:
    inner = [*each.get("anyOf", ()), each.get("items", {})]
    found = [words.format(part[key]) for part in (each, *inner) for key, words in LIMITS.items() if key in part]
    return ", ".join(dict.fromkeys(found))


def _whole(schema: dict[str, Any]) -> str:
    return f"## JSON schema\n\n{fence(json.dumps(schema, indent=1), 'json')}"
