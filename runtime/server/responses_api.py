"""The body of ``/v1/responses``: the same questions as a chat's, in other words."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import time
from typing import Annotated, Any, Literal
from uuid import uuid4

from pydantic import BaseModel, ConfigDict, Field

from hybridge.runtime.server.requests import ApiError, ChatRequest, GenerationRequest, Text, invalid, parse
from hybridge.runtime.server.worker import Chance, Finished
from hybridge.runtime.text.answers import Answer, Delta

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


# An answer of ``/v1/responses``: a list of items, whole or as events that add to it.


KINDS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "message": ("content", "output_text", {"annotations": [], "logprobs": []}),
    "reasoning": ("content", "reasoning_text", {}),
}
"""Of items that are text: the field of their parts, the parts' type, and what else a part has."""


@dataclass
class ResponsesForm:
    """Makes the objects of one answer; ``Form`` makes those of the other paths."""

    model: str
    id: str = field(default_factory=lambda: f"resp_{uuid4().hex}")
    created: int = field(default_factory=lambda: int(time()))
    items: list[dict[str, Any]] = field(default_factory=list)
    _sequence: int = 0

    def whole(self, answer: Answer, chances: Sequence[Chance] | None, end: Finished, prompt: int) -> dict[str, Any]:
        """Return the answer in one object."""
        for delta in (Delta(reasoning=answer.reasoning), Delta(content=answer.content), *map(_called, answer.calls)):
            list(self._added(delta))
        list(self._closed())
        return self._object(end, prompt)

    def first(self) -> Iterator[str]:
        """Yield the events that begin a stream."""
        for kind in ("created", "in_progress"):
            yield self._event(f"response.{kind}", response=self._object())

    def piece(self, delta: Delta, chances: Sequence[Chance] | None) -> Iterator[str]:
        """Yield the events of a piece of the answer."""
        yield from self._added(delta)

    def last(self, answer: Answer, end: Finished, prompt: int) -> Iterator[str]:
        """Yield the events that end a stream."""
        yield from self._closed()
        response = self._object(end, prompt)
        yield self._event(f"response.{response['status']}", response=response)

    def error(self, error: ApiError) -> Iterator[str]:
        """Yield the event of what went wrong."""
        yield self._event("error", message=error.message, code=error.code, param=error.param)

    # Items

    def _added(self, delta: Delta) -> Iterator[str]:
        if delta.call is not None:
            yield from self._closed()
            yield from self._call(delta)
        elif text := delta.content or delta.reasoning:
            kind = "message" if delta.content else "reasoning"
            if not self.items or self.items[-1]["type"] != kind:
                yield from self._closed()
                yield from self._opened(kind)
            item = self.items[-1]
            name, part, _ = KINDS[kind]
            item[name][0]["text"] += text
            yield self._of_item(f"response.{part}.delta", item, content_index=0, delta=text, **_no_chances(item))

    def _opened(self, kind: str) -> Iterator[str]:
        name, part, more = KINDS[kind]
        prefix = "msg" if kind == "message" else "rs"
        own: dict[str, Any] = {"role": "assistant"} if kind == "message" else {"summary": []}
        item = {"type": kind, "id": f"{prefix}_{uuid4().hex}", "status": "in_progress", **own, name: []}
        self.items.append(item)
        yield self._event("response.output_item.added", output_index=len(self.items) - 1, item=item)
        item[name] = [{"type": part, "text": "", **more}]
        yield self._of_item("response.content_part.added", item, content_index=0, part=item[name][0])

    def _closed(self) -> Iterator[str]:
        """End the last item, if it is text that goes on."""
        if not self.items or self.items[-1]["status"] != "in_progress":
            return
        item = self.items[-1]
        name, kind, _ = KINDS[item["type"]]
        part = item[name][0]
        yield self._of_item(f"response.{kind}.done", item, content_index=0, text=part["text"], **_no_chances(item))
        yield self._of_item("response.content_part.done", item, content_index=0, part=part)
        item["status"] = "completed"
        yield self._event("response.output_item.done", output_index=len(self.items) - 1, item=item)

    def _call(self, delta: Delta) -> Iterator[str]:
        """A call comes whole."""
        assert delta.call is not None
        call = delta.call
        item = {"type": "function_call", "id": f"fc_{uuid4().hex}", "call_id": call.id, "name": call.name, "arguments": "",
                "status": "in_progress"}  # fmt: skip
        self.items.append(item)
        yield self._event("response.output_item.added", output_index=len(self.items) - 1, item=item)
        yield self._of_item("response.function_call_arguments.delta", item, delta=call.arguments)
        item |= {"arguments": call.arguments, "status": "completed"}
        yield self._of_item("response.function_call_arguments.done", item, name=call.name, arguments=call.arguments)
        yield self._event("response.output_item.done", output_index=len(self.items) - 1, item=item)

    # Objects

    def _object(self, end: Finished | None = None, prompt: int = 0) -> dict[str, Any]:
        cut = end is not None and end.reason == "length"
        return {
            "id": self.id, "object": "response", "created_at": self.created, "model": self.model,
            "status": "in_progress" if end is None else "incomplete" if cut else "completed",
            "error": None, "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": self.items, "parallel_tool_calls": True, "tool_choice": "auto", "tools": [],
            "usage": _usage(end, prompt) if end is not None else None,
        }  # fmt: skip

    def _of_item(self, kind: str, item: Mapping[str, Any], **more: object) -> str:
        return self._event(kind, item_id=item["id"], output_index=len(self.items) - 1, **more)

    def _event(self, kind: str, **content: object) -> str:
        body = json.dumps({"type": kind, "sequence_number": self._sequence, **content}, ensure_ascii=False)
        self._sequence += 1
        return f"event: {kind}\ndata: {body}\n\n"


def _no_chances(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return a field that events of messages must have."""
    return {"logprobs": []} if item["type"] == "message" else {}


def _called(call: Any) -> Delta:
    return Delta(call=call)


def _usage(end: Finished, prompt: int) -> dict[str, Any]:
    """Return what was counted."""
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": end.known},
        "output_tokens": end.stats.new_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt + end.stats.new_tokens,
    }
