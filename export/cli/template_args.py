"""``--template-arg NAME=VALUE``: variables for a chat template, such as ``enable_thinking=false``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import typer

from hybridge.export.cli.commands.options import TEMPLATE_ARG

OURS = frozenset(
    {
        *("messages", "conversations", "chat_template", "add_generation_prompt"),
        *("continue_final_message", "return_assistant_tokens_mask"),
    }
)
"""What rendering a conversation sets itself."""
LISTS = ("tools", "documents")


def template_variables(given: Sequence[str]) -> dict[str, Any]:
    """The variables of ``NAME=VALUE`` texts. Raises typer.BadParameter for a text that is none, or a name that is taken."""
    found: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise _wrong(f"{text!r}: expected a name, an equals sign and a value, such as enable_thinking=false.")
        if name in OURS:
            raise _wrong(f"{name} is set by the conversation itself: leave it out.")
        if name in found:
            raise _wrong(f"{name} is given twice: give it one value.")
        found[name] = _value(value)
    for name in LISTS:
        if name in found and not _is_list_of_objects(found[name]):
            raise _wrong(f'{name} must be a JSON list of objects, such as {name}=[{{"name": …}}], but is {found[name]!r}.')
    return found


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _is_list_of_objects(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, dict) for each in value)


def _wrong(message: str) -> typer.BadParameter:
    return typer.BadParameter(message, param_hint=f"'{TEMPLATE_ARG}'")
