"""``hybridge serve``: its API key, and how it renders conversations."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybridge.cache.errors import UsageError
from hybridge.runtime.artifacts.artifact import Artifact
from hybridge.runtime.cli.commands.serve import KEY_VARIABLE
from hybridge.runtime.cli.generating import OURS
from hybridge.runtime.text.chat_template import ChatTemplates, thinking_of

if TYPE_CHECKING:
    from hybridge.runtime.server.prompts import Render

LONGEST_KEY = 4096


def renderer(artifact: Artifact, variables: Mapping[str, Any], thinking: bool | None = None) -> Render:
    """What renders conversations with a request's own variables of the chat template, which come before ``variables``.

    thinking: switched on or off where a request does not say. Raises UsageError for a template without such a switch.
    """
    defaults = {**variables, **thinking_of(artifact, thinking, variables)}
    templates = ChatTemplates.of(artifact)

    def render(messages: list[dict[str, Any]], own: Mapping[str, Any]) -> str:
        if taken := OURS & own.keys():
            raise UsageError(f"chat_template_kwargs: {min(taken)} is set by the conversation itself; leave it out.")
        return templates.with_variables({**defaults, **own})(messages)

    return render


def api_key(file: Path | None) -> str | None:
    """Read the API key from a file or the environment: a process list shows neither. Raises UsageError for none in the file."""
    if file is None:
        return os.environ.get(KEY_VARIABLE) or None
    try:
        with file.open(encoding="utf-8") as opened:
            key = opened.read(LONGEST_KEY).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} with the API key cannot be read ({error}); give a text file that holds it.") from None
    if not key:
        raise UsageError(f"{file} holds no API key; write one into it.")
    return key
