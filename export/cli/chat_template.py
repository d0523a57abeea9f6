"""The chat template of an artifact, rendered as transformers does it: in a sandbox."""

from __future__ import annotations

import json
from typing import Any

from hybridge.cache.errors import UsageError
from hybridge.runtime.artifact import Artifact
from hybridge.runtime.conversation import Message, Render

SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token")


def load_template(artifact: Artifact) -> Render:
    """What renders conversations for the artifact's model. Raises UsageError where the checkpoint had no chat template."""
    config = _json(artifact, "tokenizer_config.json")
    template = _text(artifact, "chat_template.jinja") or _named(config) or _named(_json(artifact, "chat_template.json"))
    if not template:
        raise UsageError(
            f"{artifact.folder} has no chat template, so its model was not made to chat; use 'hybridge run' to continue a text."
        )
    special = {name: _content(config[name]) for name in SPECIAL if config.get(name)}
    return lambda messages: render(template, messages, special)


def render(template: str, messages: list[Message], special: dict[str, str]) -> str:
    """The text of ``messages`` up to where the assistant speaks. Raises UsageError with the template's own message."""
    from jinja2 import TemplateError

    from hybridge.export.pinned.transformers import render_chat

    try:
        return render_chat(template, messages, special)
    except (TemplateError, TypeError, ValueError) as error:
        raise UsageError(f"the model's chat template refuses this conversation: {error}") from None


def _named(config: dict[str, Any]) -> str | None:
    """A template by itself, or the default one of several."""
    template = config.get("chat_template")
    if isinstance(template, list):
        return next((each["template"] for each in template if each.get("name") == "default"), None)
    return template if isinstance(template, str) else None


def _content(token: str | dict[str, Any]) -> str:
    return token if isinstance(token, str) else str(token["content"])


def _text(artifact: Artifact, name: str) -> str | None:
    return (artifact.folder / name).read_text(encoding="utf-8") if name in artifact.manifest.files else None


def _json(artifact: Artifact, name: str) -> dict[str, Any]:
    text = _text(artifact, name)
    try:
        content: dict[str, Any] = json.loads(text) if text else {}
    except ValueError as error:
        raise UsageError(f"{artifact.folder / name} is not JSON ({error}); export the model again.") from None
    return content
