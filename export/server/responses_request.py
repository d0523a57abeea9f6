"""The body of ``/v1/responses``: the same questions as a chat's, in other words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from hybridge.export.server.errors import invalid
from hybridge.export.server.requests import ChatRequest, GenerationRequest, Text, parse

SAME = (
    "model",
    "stream",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "seed",
    "stop",
    "chat_template_kwargs",
)
"""Fields that a chat has under the same name."""

ELSEWHERE = {"response_format": "text.format", "max_tokens": "max_output_tokens", "token_origins": "not supported"}
"""Fields of a chat that are called otherwise here."""


class _Item(BaseModel):
    model_config = ConfigDict(extra="ignore")


class TextPart(_Item):
    """A part of a content; text is the only kind."""

    type: Literal["input_text", "output_text", "text", "reasoning_text"]
    text: Text


Content = Text | Annotated[list[TextPart], Field(max_length=1024)]


class MessageItem(_Item):
    """A message."""

    type: Literal["message"] = "message"
    role: Annotated[str, Field(min_length=1, max_length=64)]
    content: Content


class CallItem(_Item):
    """A call that the model made. arguments: JSON."""

    type: Literal["function_call"]
    call_id: Annotated[str, Field(max_length=256)]
    name: str
    arguments: Text


class OutputItem(_Item):
    """What came of a call."""

    type: Literal["function_call_output"]
    call_id: Annotated[str, Field(max_length=256)]
    output: Content


class ReasoningItem(_Item):
    """What the model reasoned before the items behind it."""

    type: Literal["reasoning"]
    content: Annotated[list[TextPart], Field(max_length=1024)] | None = None


Item = MessageItem | CallItem | OutputItem | ReasoningItem


class FunctionTool(_Item):
    """A tool that the model may call. parameters: a JSON schema."""

    type: Literal["function"]
    name: str
    description: Text | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    def for_chat(self) -> dict[str, Any]:
        """Return it as a chat has it."""
        return {"type": "function", "function": self.model_dump(exclude={"type"}, exclude_none=True)}


class NamedTool(_Item):
    """The tool that must be called."""

    type: Literal["function"]
    name: str


class TextFormat(_Item):
    """What an answer looks like."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: Annotated[dict[str, Any] | None, Field(alias="schema")] = None

    def for_chat(self) -> dict[str, Any]:
        """Return it as a chat has it."""
        named = {"json_schema": {"name": "answer", "schema": self.json_schema}} if self.json_schema is not None else {}
        return {"type": self.type, **named}


class TextOptions(_Item):
    """format: what the answer looks like."""

    format: TextFormat | None = None


class ResponsesRequest(GenerationRequest):
    """The body of a request. Nothing is stored: a conversation is sent whole each time, which reads what is new."""

    input: Text | Annotated[list[Item], Field(min_length=1, max_length=4096)]
    instructions: Text | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    text: TextOptions | None = None
    tools: Annotated[list[FunctionTool], Field(max_length=256)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    previous_response_id: str | None = None

    def for_chat(self) -> ChatRequest:
        """Return the chat that asks the same. Raises ApiError."""
        if self.previous_response_id is not None:
            raise invalid("responses are not stored here: send the conversation's items again.", "previous_response_id")
        for name in ("response_format", "max_tokens", "token_origins"):
            if getattr(self, name) is not None:
                raise invalid(f"{name} is a field of chats; here it is {ELSEWHERE[name]}.", name, "unknown_parameter")
        chosen = self.tool_choice
        body = {
            **{name: getattr(self, name) for name in SAME},
            "messages": list(self._messages()),
            "max_tokens": self.max_output_tokens,
            "tools": [tool.for_chat() for tool in self.tools or ()] or None,
            "tool_choice": {"type": "function", "function": {"name": chosen.name}} if isinstance(chosen, NamedTool) else chosen,
            "response_format": self.text.format.for_chat() if self.text is not None and self.text.format is not None else None,
        }
        return parse(ChatRequest, json.dumps(body).encode())

    def _messages(self) -> Iterator[dict[str, Any]]:
        """Yield messages: what the model reasoned, said and called in a row is one of them."""
        if self.instructions is not None:
            yield {"role": "system", "content": self.instructions}
        spoken: dict[str, Any] = {}
        for item in self.input if not isinstance(self.input, str) else [MessageItem(role="user", content=self.input)]:
            if not _is_models(item) or ("tool_calls" in spoken and not isinstance(item, CallItem)):
                yield from [spoken] if spoken else []
                spoken = {}
            match item:
                case MessageItem(role="assistant"):
                    spoken = {**_spoken(spoken), "content": spoken.get("content", "") + _text(item.content)}
                case MessageItem():
                    yield {"role": item.role, "content": _text(item.content)}
                case ReasoningItem():
                    spoken = {**_spoken(spoken), "reasoning_content": _text(item.content or [])}
                case CallItem():
                    call = {"id": item.call_id, "type": "function", "function": item.model_dump(include={"name", "arguments"})}
                    spoken = {**_spoken(spoken), "tool_calls": [*spoken.get("tool_calls", []), call]}
                case OutputItem():
                    yield {"role": "tool", "tool_call_id": item.call_id, "content": _text(item.output)}
        yield from [spoken] if spoken else []


def _is_models(item: Item) -> bool:
    return isinstance(item, CallItem | ReasoningItem) or (isinstance(item, MessageItem) and item.role == "assistant")


def _spoken(message: dict[str, Any]) -> dict[str, Any]:
    return message or {"role": "assistant", "content": ""}


def _text(content: str | list[TextPart]) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)
