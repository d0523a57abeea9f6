"""The chat template of an artifact, rendered as transformers does it: in a sandbox, and in a process of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from hybridge.cache.errors import UsageError
from hybridge.export.cli.template_process import RenderError, TemplateProcess
from hybridge.export.cli.thinking import thinking_variables
from hybridge.export.server.formats import Format, answer_format, decoder_of
from hybridge.export.tokenizer.special_tokens import SPECIAL_TOKENS_MAP, TOKENIZER_CONFIG, special_tokens
from hybridge.runtime.artifacts.artifact import Artifact
from hybridge.runtime.chat.parts import Apart, Message, Render, undivided

PROCESS = TemplateProcess()
"""Renders templates for everything in this process: commands, and all requests of a server."""
DEFAULT, TOOL_USE = "default", "tool_use"
TEMPLATE_FILE, SUFFIX = "chat_template", ".jinja"


def load_template(artifact: Artifact, variables: Mapping[str, Any] | None = None, thinking: bool | None = None) -> Render:
    """Return what renders conversations for the artifact's model, with its special tokens and then ``variables`` by name.

    thinking: switched on or off, where the template has a switch for it. Raises UsageError where the checkpoint had no chat
    template, only named ones of which none is meant, or no such switch.
    """
    return ChatTemplates.of(artifact).with_variables(variables or {}, thinking)


@dataclass(frozen=True)
class ChatTemplates:
    """The chat templates of an artifact by name, read once, and its special tokens."""

    folder: Path
    texts: Mapping[str, str]
    special: Mapping[str, Any]

    @classmethod
    def of(cls, artifact: Artifact) -> ChatTemplates:
        """Read them. Raises UsageError for a file that is no JSON."""
        special = special_tokens(_json(artifact, TOKENIZER_CONFIG), _json(artifact, SPECIAL_TOKENS_MAP))
        return cls(artifact.folder, _templates(artifact), special)

    def with_variables(self, variables: Mapping[str, Any], thinking: bool | None = None) -> Render:
        """Return what ``load_template`` does."""
        template = self.chosen(tools=variables.get("tools") is not None)
        every = {**self.special, **variables, **thinking_variables(template, thinking, variables)}
        return lambda messages: render(template, messages, every)

    def chosen(self, *, tools: bool) -> str:
        """Return the template for tools where there are some and the model has one, else the default. Raises UsageError."""
        if not self.texts:
            raise UsageError(
                f"{self.folder} has no chat template, so its model was not made to chat; use 'hybridge run' to continue a text."
            )
        name = TOOL_USE if tools and TOOL_USE in self.texts else DEFAULT
        if name not in self.texts:
            raise UsageError(
                f"{self.folder} has chat templates for {', '.join(sorted(self.texts))} and no default one: put the one that "
                "you mean into the checkpoint as chat_template.jinja, and export it again."
            )
        return self.texts[name]


def thinking_of(artifact: Artifact, thinking: bool | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the variable that switches thinking in the artifact's chat template. Raises what ``load_template`` does."""
    return thinking_variables(ChatTemplates.of(artifact).chosen(tools=False), thinking, given) if thinking is not None else {}


def answer_format_of(artifact: Artifact, tokenizer: Tokenizer) -> Format | None:
    """Return how the answers of an artifact's model are read, where they are more than text."""
    own = _json(artifact, TOKENIZER_CONFIG).get("response_template")
    return answer_format(own, "\n".join(_templates(artifact).values()), tokenizer)


def taken_apart(artifact: Artifact, tokenizer: Tokenizer) -> Apart:
    """Return how reasoning is told from content in the answers of an artifact's model; all is content of an unknown form."""
    form = answer_format_of(artifact, tokenizer)
    if form is None:
        return undivided(tokenizer)
    return Apart(decoder_of(form, tokenizer), lambda prompt: form.answer(prompt, ()))


def render(template: str, messages: list[Message], variables: Mapping[str, Any]) -> str:
    """Return the text of ``messages`` up to where the assistant speaks. Raises UsageError with the template's own message."""
    try:
        return PROCESS.render(template, messages, variables)
    except RenderError as error:
        if error.line is not None:
            raise UsageError(f"the model's chat template is no Jinja template: {error} (line {error.line}).") from None
        raise UsageError(f"the model's chat template refuses this conversation: {error}") from None


def _templates(artifact: Artifact) -> dict[str, str]:
    """Templates by name, from wherever the checkpoint had them."""
    own = _files(artifact) or _named(_json(artifact, TOKENIZER_CONFIG))
    return own or _named(_json(artifact, "chat_template.json"))


def _files(artifact: Artifact) -> dict[str, str]:
    """Templates by name: chat_template.jinja is the default, chat_template.rag.jinja that for rag.

    An export writes the latter of additional_chat_templates/rag.jinja.
    """
    names = [name for name in artifact.manifest.files if name.startswith(f"{TEMPLATE_FILE}.") and name.endswith(SUFFIX)]
    middles = {name: name.removeprefix(TEMPLATE_FILE).removesuffix(SUFFIX).removeprefix(".") for name in names}
    return {middle or DEFAULT: _text(artifact, name) or "" for name, middle in middles.items()}


def _named(config: dict[str, Any]) -> dict[str, str]:
    """Templates by name of a JSON file's ``chat_template``: one by itself, or a list of them with names."""
    found = config.get("chat_template")
    listed = found if isinstance(found, list) else [{"name": DEFAULT, "template": found}]
    templates = {each.get("name"): each.get("template") for each in listed if isinstance(each, dict)}
    return {str(name): template for name, template in templates.items() if isinstance(template, str)}


def _text(artifact: Artifact, name: str) -> str | None:
    return artifact.read(name).decode("utf-8") if name in artifact.manifest.files else None


def _json(artifact: Artifact, name: str) -> dict[str, Any]:
    text = _text(artifact, name)
    try:
        content = json.loads(text) if text else {}
    except ValueError as error:
        raise UsageError(f"{artifact.folder / name} is not JSON ({error}); export the model again.") from None
    return content if isinstance(content, dict) else {}
