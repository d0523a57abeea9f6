"""Validate the bodies of ``/v1/responses``, which are chats in other words."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from hybridge.runtime.server.requests import SAMPLED, Arguments, ChatRequest, GenerationRequest, Lenient, Text, invalid, parse

SAME_IN_CHATS = (
    "model",
    "stream",
    "chat_template_kwargs",
    "parallel_tool_calls",
    "truncation",
    "stop",
    "stop_after_reasoning",
    *SAMPLED,
)
"""Fields of responses that a chat has under the same name."""
ELSEWHERE = {
    "response_format": "text.format",
    "max_tokens": "max_output_tokens",
    "n": "not supported",
    "token_origins": "not supported",
}
"""Fields of a chat, with their names in responses."""


class TextPart(Lenient):
    """A text in a content."""

    type: Literal["input_text", "output_text", "text", "reasoning_text"]
    text: Text


class ImagePart(Lenient):
    """A picture in a content, as a ``data:`` URL."""

    type: Literal["input_image"]
    image_url: Annotated[str, Field(max_length=90 << 20)]


Content = Text | Annotated[list[TextPart], Field(max_length=1024)]


class MessageItem(Lenient):
    """A message."""

    type: Literal["message"] = "message"
    role: Annotated[str, Field(min_length=1, max_length=64)]
    content: Text | Annotated[list[Annotated[TextPart | ImagePart, Field(discriminator="type")]], Field(max_length=1024)]


class CallItem(Lenient):
    """A call that the model made. arguments: the text of a JSON object."""

    type: Literal["function_call"]
    call_id: Annotated[str, Field(max_length=256)]
    name: str
    arguments: Arguments


class OutputItem(Lenient):
    """The result of a call."""

    type: Literal["function_call_output"]
    call_id: Annotated[str, Field(max_length=256)]
    output: Content


class ReasoningItem(Lenient):
    """Reasoning of the model before the items after it."""

    type: Literal["reasoning"]
    content: Annotated[list[TextPart], Field(max_length=1024)] | None = None


def _type_of(item: Any) -> str:
    """Return the type of an item, which a message may leave out."""
    return str(item.get("type", "message")) if isinstance(item, dict) else str(getattr(item, "type", ""))


ITEM_TYPE = Discriminator(
    _type_of, custom_error_type="item_type",
    custom_error_message="an item's type is message, function_call, function_call_output or reasoning",
)  # fmt: skip
Item = (
    Annotated[MessageItem, Tag("message")]
    | Annotated[CallItem, Tag("function_call")]
    | Annotated[OutputItem, Tag("function_call_output")]
    | Annotated[ReasoningItem, Tag("reasoning")]
)


class FunctionTool(Lenient):
    """A tool that the model may call. parameters: a JSON schema."""

    type: Literal["function"]
    name: str
    description: Text | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    def for_chat(self) -> dict[str, Any]:
        """Return it in the form of a chat request."""
        return {"type": "function", "function": self.model_dump(exclude={"type"}, exclude_none=True)}


class NamedTool(Lenient):
    """The tool that must be called."""

    type: Literal["function"]
    name: str


class TextFormat(Lenient):
    """The format of an answer."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: Annotated[dict[str, Any] | None, Field(alias="schema")] = None

    def for_chat(self) -> dict[str, Any]:
        """Return it in the form of a chat request."""
        named = {"json_schema": {"name": "answer", "schema": self.json_schema}} if self.json_schema is not None else {}
        return {"type": self.type, **named}


class TextOptions(Lenient):
    """Options of the answer's text."""

    format: TextFormat | None = None


class Reasoning(Lenient):
    """How much the model thinks."""

    effort: str | None = None


class ResponsesRequest(GenerationRequest):
    """The body of ``/v1/responses``. Nothing is stored: clients send the whole conversation, of which new text is read."""

    input: Text | Annotated[list[Annotated[Item, ITEM_TYPE]], Field(min_length=1, max_length=4096)]
    instructions: Text | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    text: TextOptions | None = None
    tools: Annotated[list[FunctionTool], Field(max_length=256)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    previous_response_id: str | None = None
    reasoning: Reasoning | None = None

    def for_chat(self) -> ChatRequest:
        """Return the equivalent chat. Raises ApiError."""
        if self.previous_response_id is not None:
            raise invalid("responses are not stored here: send the conversation's items again.", "previous_response_id")
        for name in ELSEWHERE:
            if getattr(self, name) is not None:
                raise invalid(f"{name} is a field of chats; here it is {ELSEWHERE[name]}.", name, "unknown_parameter")
        chosen = self.tool_choice
        body = {
            **{name: getattr(self, name) for name in SAME_IN_CHATS},
            "messages": list(self._messages()),
            "max_tokens": self.max_output_tokens,
            "reasoning_effort": self.reasoning.effort if self.reasoning is not None else None,
            "tools": [tool.for_chat() for tool in self.tools or ()] or None,
            "tool_choice": {"type": "function", "function": {"name": chosen.name}} if isinstance(chosen, NamedTool) else chosen,
            "response_format": self.text.format.for_chat() if self.text is not None and self.text.format is not None else None,
        }
        return parse(ChatRequest, json.dumps(body).encode())

    def _messages(self) -> Iterator[dict[str, Any]]:
        """Yield messages: reasoning, text and calls of the model in a row are one message."""
        if self.instructions is not None:
            yield {"role": "system", "content": self.instructions}
        spoken: dict[str, Any] = {}
        for item in self.input if not isinstance(self.input, str) else [MessageItem(role="user", content=self.input)]:
            is_models = isinstance(item, CallItem | ReasoningItem) or (
                isinstance(item, MessageItem) and item.role == "assistant"
            )
            if not is_models or ("tool_calls" in spoken and not isinstance(item, CallItem)):
                yield from [spoken] if spoken else []
                spoken = {}
            match item:
                case MessageItem(role="assistant"):
                    spoken = {**_spoken(spoken), "content": spoken.get("content", "") + _text(item.content)}
                case MessageItem():
                    yield {"role": item.role, "content": _content(item.content)}
                case ReasoningItem():
                    spoken = {**_spoken(spoken), "reasoning_content": _text(item.content or [])}
                case CallItem():
                    call = {"id": item.call_id, "type": "function", "function": item.model_dump(include={"name", "arguments"})}
                    spoken = {**_spoken(spoken), "tool_calls": [*spoken.get("tool_calls", []), call]}
                case OutputItem():
                    yield {"role": "tool", "tool_call_id": item.call_id, "content": _text(item.output)}
        yield from [spoken] if spoken else []


def _spoken(message: dict[str, Any]) -> dict[str, Any]:
    return message or {"role": "assistant", "content": ""}


def _text(content: str | Sequence[TextPart | ImagePart]) -> str:
    """Return the text of a content. Raises ApiError for a picture, which only a message to the model may have."""
    if isinstance(content, str):
        return content
    if any(isinstance(part, ImagePart) for part in content):
        raise invalid("a picture is in a part of the conversation that cannot have one; put it into a user's message.", "input")
    return "".join(part.text for part in content if isinstance(part, TextPart))


def _content(content: str | Sequence[TextPart | ImagePart]) -> str | list[dict[str, Any]]:
    """Return a content in the form of a chat's."""
    if isinstance(content, str) or not any(isinstance(part, ImagePart) for part in content):
        return _text(content)
    return [
        {"type": "text", "text": part.text}
        if isinstance(part, TextPart)
        else {"type": "image_url", "image_url": {"url": part.image_url}}
        for part in content
    ]
