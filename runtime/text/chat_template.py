"""An artifact's chat templates with variables of a caller's, and the format of the model's answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hybridge.errors import UsageError
from hybridge.runtime.artifact.folder import Artifact
from hybridge.runtime.binding.jinja import JinjaTemplate, RenderedChat
from hybridge.runtime.binding.tokenizer import Tokenizer
from hybridge.runtime.text.answers import AnswerFormat, AnswerSplitter, decoder_of

Message = dict[str, Any]
RESERVED = frozenset(
    {
        *("messages", "conversations", "chat_template", "add_generation_prompt"),
        *("continue_final_message", "return_assistant_tokens_mask"),
    }
)
"""Variables that rendering a conversation sets itself."""
REASONING = ("reasoning_content", "thinking", "reasoning")
"""Names of a message's reasoning; templates read the first, gpt-oss' the second."""


class ChatTemplate:
    """A chat template and its variables. jinja: the templates of a model; variables: by name."""

    def __init__(
        self, jinja: JinjaTemplate, variables: Mapping[str, Any] | None = None, thinking: bool | None = None,
        now: str | None = None, form: AnswerFormat | None = None,
    ) -> None:  # fmt: skip
        """Take over templates.

        Args:
            jinja: the templates.
            variables: further variables of them, by name.
            thinking: switches thinking on or off by the template's own switch; None leaves the default.
            now: the local time that the template sees, in ISO's format; left out, the system's.
            form: of the model's answers. A template that reads no tools tells them in words by it; left out, it drops them.

        Raises:
            UsageError: there is no switch for thinking, or ``variables`` sets it already.
        """
        self.jinja, self.variables, self.now, self.form = jinja, dict(variables or {}), now, form
        if thinking is None:
            return
        option, switch = "--thinking" if thinking else "--no-thinking", jinja.description.thinking_switch
        if not switch:
            raise UsageError(
                "the model's chat template has no switch for thinking (enable_thinking or thinking); leave "
                f"{option} out, or set what the template has instead by --template-arg, such as reasoning_effort=low."
            )
        if switch in self.variables:
            raise UsageError(f"{option} and --template-arg {switch} say the same thing; give one of them.")
        self.variables[switch] = thinking

    def render(self, messages: list[Message], variables: Mapping[str, Any] | None = None) -> RenderedChat:
        """Return the text of ``messages`` up to the assistant's turn.

        Args:
            messages: the conversation.
            variables: more of them, which count before the template's.

        Raises:
            UsageError: there is no template, it refuses the conversation, or a variable is the conversation's own.
        """
        if taken := RESERVED & (variables or {}).keys():
            raise UsageError(f"chat_template_kwargs: {min(taken)} is set by the conversation itself; leave it out.")
        given = {"tools": None, "documents": None, **self.variables, **(variables or {})}
        every = {**given, "messages": [*map(_message, messages)], "add_generation_prompt": True}
        return self.jinja.render(every, self.now, self.form.handle if self.form else None)

    def splitter(self, tokenizer: Tokenizer) -> AnswerSplitter:
        """Return a splitter of the model's answers, with calls of the template's tools apart."""
        form = self.form or AnswerFormat.find(self.jinja, tokenizer)
        tools = self.variables.get("tools") or ()
        return AnswerSplitter(decoder_of(form, tokenizer), lambda prompt: form.answer(prompt, tools), form.looked_for)


def load_template(
    artifact: Artifact, variables: Mapping[str, Any] | None = None, thinking: bool | None = None,
    tokenizer: Tokenizer | None = None,
) -> ChatTemplate:  # fmt: skip
    """Return the chat template of an artifact; see ``ChatTemplate``. tokenizer: the artifact's, to tell tools in words.

    Raises:
        ArtifactError: a file of it is damaged.
        UsageError: there is no chat template, or no switch for thinking.
    """
    jinja = JinjaTemplate(artifact.folder)
    if not jinja.description.names:
        raise UsageError(
            f"{artifact.folder} has no chat template, so its model was not made to chat; use 'hybridge run' to continue a text."
        )
    form = AnswerFormat.find(jinja, tokenizer) if tokenizer else None
    return ChatTemplate(jinja, variables, thinking, form=form)


def _message(message: Message) -> Message:
    """Return a message with its reasoning under both names that templates read."""
    reason = next((message[name] for name in REASONING if message.get(name) is not None), None)
    return message if reason is None else {"thinking": reason, **message, "reasoning_content": reason}
