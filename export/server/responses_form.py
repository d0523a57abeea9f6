"""An answer of ``/v1/responses``: a list of items, whole or as events that add to it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import time
from typing import Any
from uuid import uuid4

from hybridge.export.server.answers import Answer, Delta
from hybridge.export.server.errors import ApiError
from hybridge.export.server.job import Chance, Finished

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
