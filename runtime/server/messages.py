"""Anthropic's Messages API: bodies of ``/v1/messages``, which are chats in other words, and its answers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal
from uuid import uuid4

from pydantic import Field

from hybridge.runtime.server.requests import ApiError, ChatRequest, GenerationRequest, Lenient, Stop, Text, invalid, parse
from hybridge.runtime.server.responses import Choice, chosen, count_tokens, named_event
from hybridge.runtime.text.answers import Delta

# Requests


class TextBlock(Lenient):
    """A text."""

    type: Literal["text"]
    text: Text


class ImageSource(Lenient):
    """The data of a picture, or its address."""

    type: Literal["base64", "url"]
    media_type: str = "image/png"
    data: Annotated[str, Field(max_length=90 << 20)] = ""
    url: Annotated[str, Field(max_length=90 << 20)] = ""


class ImageBlock(Lenient):
    """A picture."""

    type: Literal["image"]
    source: ImageSource

    def for_chat(self) -> dict[str, Any]:
        """Return it in the form of a chat request."""
        source = self.source
        url = source.url if source.type == "url" else f"data:{source.media_type};base64,{source.data}"
        return {"type": "image_url", "image_url": {"url": url}}


class ThinkingBlock(Lenient):
    """Reasoning of the model."""

    type: Literal["thinking"]
    thinking: Text


class HiddenThinkingBlock(Lenient):
    """Reasoning that cannot be read, which is left out."""

    type: Literal["redacted_thinking"]


class UseBlock(Lenient):
    """A call that the model made."""

    type: Literal["tool_use"]
    id: Annotated[str, Field(max_length=256)]
    name: Annotated[str, Field(min_length=1, max_length=256)]
    input: dict[str, Any]

    def for_chat(self) -> dict[str, Any]:
        """Return it in the form of a chat request."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": json.dumps(self.input)}}


class ResultBlock(Lenient):
    """The result of a call."""

    type: Literal["tool_result"]
    tool_use_id: Annotated[str, Field(max_length=256)]
    content: Text | Annotated[list[TextBlock], Field(max_length=1024)] = ""


Block = TextBlock | ImageBlock | ThinkingBlock | HiddenThinkingBlock | UseBlock | ResultBlock


class AnthropicMessage(Lenient):
    """A message."""

    role: Literal["user", "assistant", "system"]
    content: Text | Annotated[list[Annotated[Block, Field(discriminator="type")]], Field(max_length=1024)]

    def for_chat(self) -> Iterator[dict[str, Any]]:
        """Yield it in the form of a chat request, where results are messages of their own."""
        blocks = [TextBlock(type="text", text=self.content)] if isinstance(self.content, str) else self.content
        results = [each for each in blocks if isinstance(each, ResultBlock)]
        for each in results:
            yield {"role": "tool", "tool_call_id": each.tool_use_id, "content": _text(each.content)}
        text = _text([each for each in blocks if isinstance(each, TextBlock)])
        if self.role == "assistant":
            calls = [each.for_chat() for each in blocks if isinstance(each, UseBlock)]
            reasons = "".join(each.thinking for each in blocks if isinstance(each, ThinkingBlock))
            message = {"role": "assistant", "content": text, "tool_calls": calls or None}
            yield message | ({"reasoning_content": reasons} if reasons else {})
        elif any(isinstance(each, ImageBlock) for each in blocks):
            shown = [each for each in blocks if isinstance(each, TextBlock | ImageBlock)]
            yield {
                "role": self.role,
                "content": [each.model_dump() if isinstance(each, TextBlock) else each.for_chat() for each in shown],
            }
        elif text or not results:
            yield {"role": self.role, "content": text}


class AnthropicTool(Lenient):
    """A tool that the model may call. input_schema: a JSON schema."""

    type: Literal["custom"] | None = None
    name: str
    description: Text | None = None
    input_schema: dict[str, Any]

    def for_chat(self) -> dict[str, Any]:
        """Return it in the form of a chat request."""
        function = {"name": self.name, "description": self.description, "parameters": self.input_schema}
        return {"type": "function", "function": function}


class ToolChoice(Lenient):
    """Which tools are called."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool = False


class Thinking(Lenient):
    """Whether the model thinks. The number of tokens for it is not limited."""

    type: Literal["enabled", "disabled", "adaptive"]


class OutputFormat(Lenient):
    """The format of the answer."""

    type: Literal["json_schema"]
    json_schema: Annotated[dict[str, Any], Field(alias="schema")]


class OutputConfig(Lenient):
    """Options of the answer."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class MessagesRequest(GenerationRequest):
    """The body of ``/v1/messages``."""

    messages: Annotated[list[AnthropicMessage], Field(min_length=1, max_length=4096)]
    system: Text | Annotated[list[TextBlock], Field(max_length=1024)] | None = None
    stop_sequences: Annotated[list[Stop], Field(max_length=16)] | None = None
    thinking: Thinking | None = None
    tools: Annotated[list[AnthropicTool], Field(max_length=256)] | None = None
    tool_choice: ToolChoice | None = None
    output_config: OutputConfig | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def for_chat(self) -> ChatRequest:
        """Return the equivalent chat. Raises ApiError."""
        choice, config = self.tool_choice or ToolChoice(type="auto"), self.output_config or OutputConfig()
        if choice.type == "tool" and choice.name is None:
            raise invalid("tool_choice.name: the type tool needs the name of a tool.", "tool_choice")
        chosen_tool = {"type": "function", "function": {"name": choice.name}} if choice.type == "tool" else None
        effort = {"xhigh": "high", "max": "high", None: "medium"}.get(config.effort, config.effort)
        is_told = self.thinking is not None or config.effort is not None
        if self.thinking is not None and self.thinking.type == "disabled":
            effort = "none"
        system = [{"role": "system", "content": _text(self.system)}] if self.system else []
        body = {
            **{name: getattr(self, name) for name in GenerationRequest.model_fields if name != "stream_options"},
            "messages": [*system, *(each for message in self.messages for each in message.for_chat())],
            "stop": self.stop_sequences,
            "tools": [tool.for_chat() for tool in self.tools or ()] or None,
            "tool_choice": chosen_tool or {"any": "required"}.get(choice.type, choice.type),
            "parallel_tool_calls": not choice.disable_parallel_tool_use,
            "reasoning_effort": effort if is_told else None,
            "chat_template_kwargs": self.chat_template_kwargs,
        }
        if config.format is not None:
            named = {"name": "answer", "schema": config.format.json_schema}
            body["response_format"] = {"type": "json_schema", "json_schema": named}
        return parse(ChatRequest, json.dumps(body).encode())


def _text(content: str | Sequence[TextBlock]) -> str:
    return content if isinstance(content, str) else "".join(each.text for each in content)


# Answers


ERRORS: Mapping[int, str] = {
    401: "authentication_error", 403: "permission_error", 404: "not_found_error", 413: "request_too_large",
    408: "timeout_error", 429: "rate_limit_error", 500: "api_error", 503: "overloaded_error",
}  # fmt: skip


def error_object(error: ApiError) -> dict[str, Any]:
    """Return the body of an error."""
    kind = ERRORS.get(error.status, "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": error.message}}


@dataclass
class MessagesFormat:
    """Writes a message: a list of blocks, whole or as events that add to them."""

    model: str
    prompt_tokens: int = 0
    id: str = field(default_factory=lambda: f"msg_{uuid4().hex}")
    blocks: list[dict[str, Any]] = field(default_factory=list)

    def whole(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """Return the answer in one object."""
        choice = choices[0]
        for delta in chosen(choice.answer):
            list(self.piece(choice, delta))
        return self._message(choice)

    def first(self, choices: Sequence[Choice]) -> Iterator[str]:
        """Yield the event that begins a stream."""
        yield named_event("message_start", message=self._message(choices[0]))

    def piece(self, choice: Choice, delta: Delta, logprobs: object = None) -> Iterator[str]:
        """Yield the events of a piece of the answer."""
        if delta.call is not None:
            call = delta.call
            yield from self._closed()
            block = {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}
            yield from self._opened(block)
            yield self._delta(type="input_json_delta", partial_json=call.arguments)
            block["input"] = json.loads(call.arguments)
        elif text := delta.content or delta.reasoning:
            kind = "text" if delta.content else "thinking"
            if not self.blocks or self.blocks[-1]["type"] != kind:
                yield from self._closed()
                yield from self._opened({"type": kind, kind: ""} | ({"signature": ""} if kind == "thinking" else {}))
            self.blocks[-1][kind] += text
            yield self._delta(**{"type": f"{kind}_delta", kind: text})

    def end(self, choice: Choice) -> Iterator[str]:
        """Yield the events that end a stream."""
        yield from self._closed()
        message = self._message(choice)
        changed = {name: message[name] for name in ("stop_reason", "stop_sequence")}
        yield named_event("message_delta", delta=changed, usage=message["usage"])
        yield named_event("message_stop")

    def last(self, choices: Sequence[Choice]) -> Iterator[str]:
        """Yield nothing: the message has ended."""
        yield from ()

    def error(self, error: ApiError) -> Iterator[str]:
        """Yield the event of an error."""
        yield named_event("error", error=error_object(error)["error"])

    def _opened(self, block: dict[str, Any]) -> Iterator[str]:
        self.blocks.append(block)
        yield named_event("content_block_start", index=len(self.blocks) - 1, content_block=block)

    def _closed(self) -> Iterator[str]:
        if self.blocks:
            yield named_event("content_block_stop", index=len(self.blocks) - 1)

    def _delta(self, **delta: str) -> str:
        return named_event("content_block_delta", index=len(self.blocks) - 1, delta=delta)

    def _message(self, choice: Choice) -> dict[str, Any]:
        counts, end = count_tokens([choice]), choice.end
        reason = None
        if end is not None:
            reason = "tool_use" if choice.answer.calls else "max_tokens" if end.reason == "length" else "end_turn"
            reason = "stop_sequence" if end.stop_string is not None else reason
        return {
            "id": self.id, "type": "message", "role": "assistant", "model": self.model, "content": self.blocks,
            "stop_reason": reason, "stop_sequence": end.stop_string if end is not None else None,
            "usage": {
                "input_tokens": counts.prompt - counts.cached, "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": counts.cached, "output_tokens": counts.new,
            },
        }  # fmt: skip
