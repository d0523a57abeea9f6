"""Render an artifact's chat template as transformers does: by the core's Jinja, within limits."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from jinja2 import Environment, TemplateSyntaxError

from hybridge.cache.errors import UsageError
from hybridge.runtime.artifacts.artifact import Artifact
from hybridge.runtime.artifacts.options import PictureDescription
from hybridge.runtime.artifacts.tokenizer import SPECIAL_TOKENS_MAP, TOKENIZER_CONFIG, special_tokens
from hybridge.runtime.core.jinja import JinjaTemplate, TemplateError
from hybridge.runtime.core.tokenizer import Tokenizer
from hybridge.runtime.text.answers import AnswerFormat, AnswerSplitter, decoder_of, unsplit

Message = dict[str, Any]
Render = Callable[[list[Message]], str]
"""Returns the text of a conversation by its chat template, up to where the assistant is to speak."""
RESERVED = frozenset(
    {
        *("messages", "conversations", "chat_template", "add_generation_prompt"),
        *("continue_final_message", "return_assistant_tokens_mask"),
    }
)
"""Variables that rendering a conversation sets itself."""
REASONING = ("reasoning_content", "thinking", "reasoning")
"""Names of a message's reasoning; templates read the first, gpt-oss' the second."""
SWITCHES = ("enable_thinking", "thinking")
"""Variables that switch thinking: Qwen, GLM, SmolLM and Nemotron read the first; Granite, DeepSeek and Kimi the second."""
DEFAULT, TOOL_USE = "default", "tool_use"
TEMPLATE_FILE, SUFFIX = "chat_template", ".jinja"


def load_template(artifact: Artifact, variables: Mapping[str, Any] | None = None, thinking: bool | None = None) -> Render:
    """Return a function that renders conversations for the artifact's model.

    Args:
        artifact: has the chat template and the special tokens.
        variables: further variables of the template, by name.
        thinking: switches thinking on or off by the template's own switch; None leaves the default.

    Raises:
        UsageError: there is no chat template, or only named ones without a default, or no switch for thinking.
    """
    return ChatTemplates.of(artifact, artifact.manifest.pictures).with_variables(variables or {}, thinking)


_read = lru_cache(8)(JinjaTemplate)


class Files(Protocol):
    """A folder of files, such as an artifact, or what an export has written of one."""

    @property
    def folder(self) -> Path: ...
    @property
    def names(self) -> Collection[str]: ...
    def read(self, name: str) -> bytes: ...


@dataclass(frozen=True)
class ChatTemplates:
    """The chat templates of an artifact by name, read once, and its special tokens."""

    folder: Path
    texts: Mapping[str, str]
    special: Mapping[str, Any]

    @classmethod
    def of(cls, artifact: Files, pictures: PictureDescription | None = None) -> ChatTemplates:
        """Read the chat templates of an artifact. Raises UsageError for a file that is not JSON.

        pictures: that it takes. If empty lines are around them in a text, the templates write these, as the processor of such
        a model does in transformers.
        """
        special = special_tokens(_json(artifact, TOKENIZER_CONFIG), _json(artifact, SPECIAL_TOKENS_MAP))
        place = pictures.form.place if pictures is not None else ""

        def with_lines(texts: Mapping[str, str]) -> dict[str, str]:
            return {name: text.replace(place, f"\n\n{place}\n\n") if place else text for name, text in texts.items()}

        return cls(artifact.folder, with_lines(_templates(artifact)), with_lines(special))

    def with_variables(self, variables: Mapping[str, Any], thinking: bool | None = None, now: str | None = None) -> Render:
        """Return a function that renders conversations with ``variables``; see ``load_template``.

        now: the date and time that templates see, in ISO's format, instead of the system's.
        """
        template = self.chosen(tools=variables.get("tools") is not None)
        every = {**self.special, **variables, **thinking_variables(template, thinking, variables)}
        return lambda messages: render(template, messages, every, now)

    def chosen(self, *, tools: bool) -> str:
        """Return the template for tools if ``tools`` and the model has one, or else the default. Raises UsageError."""
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


def answer_format_of(artifact: Files, tokenizer: Tokenizer) -> AnswerFormat | None:
    """Return the format of the model's calls and reasoning; None if it is unknown."""
    return AnswerFormat.find(JinjaTemplate(artifact.folder), tokenizer)


def reasoning_parser(artifact: Artifact, tokenizer: Tokenizer) -> AnswerSplitter:
    """Return a splitter that separates reasoning from content; unknown formats yield content only."""
    form = answer_format_of(artifact, tokenizer)
    if form is None:
        return unsplit(tokenizer)
    return AnswerSplitter(decoder_of(form, tokenizer), lambda prompt: form.answer(prompt, ()), form.looked_for)


def render(template: str, messages: list[Message], variables: Mapping[str, Any], now: str | None = None) -> str:
    """Return the text of ``messages`` up to the assistant's turn. Raises UsageError with the template's own message."""
    given = {
        "tools": None,
        "documents": None,
        **variables,
        "messages": [*map(_message, messages)],
        "add_generation_prompt": True,
    }
    try:
        read = _read(template)
    except TemplateError as error:
        raise UsageError(f"the model's chat template is no Jinja template: {error}.") from None
    try:
        return read.render(given, now).text
    except TemplateError as error:
        raise UsageError(f"the model's chat template refuses this conversation: {str(error) or 'it says no reason'}") from None


def _message(message: Message) -> Message:
    """Return a message with its reasoning under both names that templates read."""
    reason = next((message[name] for name in REASONING if message.get(name) is not None), None)
    return message if reason is None else {"thinking": reason, **message, "reasoning_content": reason}


def thinking_variables(template: str, thinking: bool | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the variable that switches thinking in ``template``; no variable if ``thinking`` is None.

    Raises:
        UsageError: the template has no switch, or ``given`` sets it already.
    """
    if thinking is None:
        return {}
    option = "--thinking" if thinking else "--no-thinking"
    switch = thinking_switch(template)
    if switch is None:
        raise UsageError(
            f"the model's chat template has no switch for thinking ({' or '.join(SWITCHES)}); leave {option} out, or set "
            "what the template has instead by --template-arg, such as reasoning_effort=low."
        )
    if switch in given:
        raise UsageError(f"{option} and --template-arg {switch} say the same thing; give one of them.")
    return {switch: thinking}


def thinking_switch(template: str) -> str | None:
    """Return the variable that switches thinking in ``template``."""
    names = set(_names(template))
    return next((name for name in SWITCHES if name in names), None)


def _names(template: str) -> Iterator[str]:
    """Yield the variables that a template reads: names that are not attributes."""
    before = ""
    try:
        for _, kind, value in Environment(autoescape=True).lex(template):
            if kind == "name" and before != ".":
                yield value
            before = before if kind == "whitespace" else value
    except TemplateSyntaxError:
        return  # rendering reports the error


# The templates of an artifact


def _templates(artifact: Files) -> dict[str, str]:
    """Return templates by name, from any place where checkpoints have them."""
    own = _files(artifact) or _named(_json(artifact, TOKENIZER_CONFIG))
    return own or _named(_json(artifact, "chat_template.json"))


def _files(artifact: Files) -> dict[str, str]:
    """Return templates by name: chat_template.jinja is the default, chat_template.rag.jinja the one for rag.

    An export copies additional_chat_templates/rag.jinja to the latter.
    """
    names = [name for name in artifact.names if name.startswith(f"{TEMPLATE_FILE}.") and name.endswith(SUFFIX)]
    middles = {name: name.removeprefix(TEMPLATE_FILE).removesuffix(SUFFIX).removeprefix(".") for name in names}
    return {middle or DEFAULT: _text(artifact, name) or "" for name, middle in middles.items()}


def _named(config: dict[str, Any]) -> dict[str, str]:
    """Return templates by name of a JSON file's ``chat_template``: a text, or a list of texts with names."""
    found = config.get("chat_template")
    listed = found if isinstance(found, list) else [{"name": DEFAULT, "template": found}]
    templates = {each.get("name"): each.get("template") for each in listed if isinstance(each, dict)}
    return {str(name): template for name, template in templates.items() if isinstance(template, str)}


def _text(artifact: Files, name: str) -> str | None:
    return artifact.read(name).decode("utf-8") if name in artifact.names else None


def _json(artifact: Files, name: str) -> dict[str, Any]:
    text = _text(artifact, name)
    try:
        content = json.loads(text) if text else {}
    except ValueError as error:
        raise UsageError(f"{artifact.folder / name} is not JSON ({error}); export the model again.") from None
    return content if isinstance(content, dict) else {}
