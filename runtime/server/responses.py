"""Write responses of OpenAI's API: a whole answer in one object, or server-sent events as it comes."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from time import time
from typing import Any, Protocol
from uuid import uuid4

from starlette.responses import JSONResponse, Response

from hybridge.runtime.binding.tokenizer import Tokenizer
from hybridge.runtime.server.requests import ApiError
from hybridge.runtime.server.worker import Finished, Job
from hybridge.runtime.text.answers import Answer, Delta
from hybridge.runtime.text.generate import TokenLogprobs


@dataclass(frozen=True)
class AnswerChunk:
    """A chunk of an answer. logprobs: of its tokens, if the request wants them."""

    deltas: list[Delta]
    logprobs: list[TokenLogprobs]


class ResponseFormat(Protocol):
    """Writes the objects and the events of one response."""

    def whole(self, answer: Answer, logprobs: Sequence[TokenLogprobs] | None, end: Finished, prompt: int) -> dict[str, Any]: ...
    def first(self) -> Iterator[str]: ...
    def piece(self, delta: Delta, logprobs: Sequence[TokenLogprobs] | None) -> Iterator[str]: ...
    def last(self, answer: Answer, end: Finished, prompt: int) -> Iterator[str]: ...
    def error(self, error: ApiError) -> Iterator[str]: ...


async def whole(
    job: Job, form: ResponseFormat, answer: Answer, events: AsyncGenerator[AnswerChunk | Finished, None]
) -> Response:
    """Return the response once the answer is complete."""
    logprobs: list[TokenLogprobs] = []
    async with aclosing(events):
        async for each in events:
            if isinstance(each, Finished):
                return JSONResponse(form.whole(answer, logprobs if job.logprobs is not None else None, each, len(job.prompt)))
            logprobs += each.logprobs
    raise AssertionError("a job ends with an event that says so")


async def streamed(
    job: Job,
    form: ResponseFormat,
    answer: Answer,
    first: AnswerChunk | Finished,
    events: AsyncGenerator[AnswerChunk | Finished, None],
) -> AsyncIterator[str]:
    """Yield the answer as server-sent events; an error on the way is the last event."""
    async with aclosing(events):
        try:
            for event in form.first():
                yield event
            each: AnswerChunk | Finished = first
            while isinstance(each, AnswerChunk):
                deltas = each.deltas or ([Delta()] if each.logprobs else [])
                for i, delta in enumerate(deltas):
                    for event in form.piece(delta, (each.logprobs if i == 0 else []) if job.logprobs is not None else None):
                        yield event
                each = await anext(events)
            for event in form.last(answer, each, len(job.prompt)):
                yield event
        except ApiError as error:
            for event in form.error(error):
                yield event


@dataclass
class CompletionFormat:
    """Writes a chat completion, or a completion of a text. with_usage: a stream ends with counts of tokens."""

    chat: bool
    model: str
    tokenizer: Tokenizer
    with_usage: bool = False
    id: str = field(init=False)
    created: int = field(default_factory=lambda: int(time()))

    def __post_init__(self) -> None:
        self.id = f"{'chatcmpl' if self.chat else 'cmpl'}-{uuid4().hex}"
        self._offset = self._calls = 0
        self._stream = self.tokenizer.stream()

    def whole(self, answer: Answer, logprobs: Sequence[TokenLogprobs] | None, end: Finished, prompt: int) -> dict[str, Any]:
        """Return the answer in one object."""
        said = {"message": self._message(answer)} if self.chat else {"text": answer.content}
        choice = {"index": 0, **said, "logprobs": self._logprobs(logprobs), "finish_reason": _reason(answer, end)}
        kind = "chat.completion" if self.chat else "text_completion"
        return self._object(kind, [choice]) | {"usage": usage(end, prompt)}

    def first(self) -> Iterator[str]:
        """Yield the event that names the role."""
        if self.chat:
            yield event(self._chunk({"delta": {"role": "assistant", "content": ""}}, None, None))

    def piece(self, delta: Delta, logprobs: Sequence[TokenLogprobs] | None) -> Iterator[str]:
        """Yield an event with text or a call."""
        yield event(self._chunk({"delta": self._delta(delta)} if self.chat else {"text": delta.content}, logprobs, None))

    def last(self, answer: Answer, end: Finished, prompt: int) -> Iterator[str]:
        """Yield the events with the finish reason and the counts."""
        yield event(self._chunk({"delta": {}} if self.chat else {"text": ""}, None, _reason(answer, end)))
        if self.with_usage:
            yield event(self._object(self._kind, []) | {"usage": usage(end, prompt)})
        yield DONE

    def error(self, error: ApiError) -> Iterator[str]:
        """Yield the event of an error."""
        yield event(error.to_dict())

    def _message(self, answer: Answer) -> dict[str, Any]:
        content = answer.content if answer.content or not answer.calls else None
        return {**answer.message(), "content": content, "refusal": None}

    def _delta(self, delta: Delta) -> dict[str, Any]:
        if delta.call is not None:
            self._calls += 1
            return {"tool_calls": [{"index": self._calls - 1, **delta.call.to_dict()}]}
        said = {"reasoning_content": delta.reasoning} if delta.reasoning else {"content": delta.content}
        return {**said, "origin": delta.origin} if delta.origin else said

    @property
    def _kind(self) -> str:
        return "chat.completion.chunk" if self.chat else "text_completion"

    def _chunk(self, said: Mapping[str, Any], logprobs: Sequence[TokenLogprobs] | None, reason: str | None) -> dict[str, Any]:
        return self._object(self._kind, [{"index": 0, **said, "logprobs": self._logprobs(logprobs), "finish_reason": reason}])

    def _object(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": choices}

    def _logprobs(self, logprobs: Sequence[TokenLogprobs] | None) -> dict[str, Any] | None:
        if logprobs is None:
            return None
        if self.chat:
            content = [
                {**self._token(each.token, each.logprob), "top_logprobs": [self._token(*pair) for pair in each.best]}
                for each in logprobs
            ]
            return {"content": content, "refusal": None}
        offsets = []
        for each in logprobs:
            offsets.append(self._offset)
            self._offset += len(self._stream.push(each.token))
        return {
            "tokens": [self._text(each.token) for each in logprobs],
            "token_logprobs": [each.logprob for each in logprobs],
            "top_logprobs": [{self._text(token): value for token, value in each.best} for each in logprobs],
            "text_offset": offsets,
        }

    def _token(self, token: int, logprob: float) -> dict[str, Any]:
        added = self.tokenizer.token_bytes(token)
        return {"token": added.decode(errors="replace"), "logprob": logprob, "bytes": list(added)}

    def _text(self, token: int) -> str:
        return self.tokenizer.token_bytes(token).decode(errors="replace")


def _reason(answer: Answer, end: Finished) -> str:
    return "tool_calls" if answer.calls and end.reason == "stop" else end.reason


def usage(end: Finished, prompt: int) -> dict[str, Any]:
    """Return the counts of tokens in the form of completions."""
    stats = end.stats
    return {
        "prompt_tokens": prompt,
        "completion_tokens": stats.new_tokens,
        "total_tokens": prompt + stats.new_tokens,
        "prompt_tokens_details": {"cached_tokens": end.cached_tokens},
        "completion_tokens_details": {
            "reasoning_tokens": end.reasoning_tokens,
            "accepted_prediction_tokens": stats.accepted,
            "rejected_prediction_tokens": stats.proposed - stats.accepted,
        },
    }


def event(content: Mapping[str, Any]) -> str:
    """Return a server-sent event."""
    return f"data: {json.dumps(content, ensure_ascii=False)}\n\n"


DONE = "data: [DONE]\n\n"


KINDS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "message": ("content", "output_text", {"annotations": [], "logprobs": []}),
    "reasoning": ("content", "reasoning_text", {}),
}
"""For each kind of text item: the field of its parts, the type of a part, and its further fields."""


@dataclass
class ResponsesFormat:
    """Writes a response of ``/v1/responses``: a list of items, whole or as events that add to it.

    parallel: the request allows several calls.
    """

    model: str
    parallel: bool = True
    id: str = field(default_factory=lambda: f"resp_{uuid4().hex}")
    created: int = field(default_factory=lambda: int(time()))
    items: list[dict[str, Any]] = field(default_factory=list)
    _sequence: int = 0

    def whole(self, answer: Answer, logprobs: Sequence[TokenLogprobs] | None, end: Finished, prompt: int) -> dict[str, Any]:
        """Return the answer in one object."""
        for delta in (
            Delta(reasoning=answer.reasoning),
            Delta(content=answer.content),
            *(Delta(call=call) for call in answer.calls),
        ):
            list(self._added(delta))
        list(self._closed())
        return self._object(end, prompt)

    def first(self) -> Iterator[str]:
        """Yield the events that begin a stream."""
        for kind in ("created", "in_progress"):
            yield self._event(f"response.{kind}", response=self._object())

    def piece(self, delta: Delta, logprobs: Sequence[TokenLogprobs] | None) -> Iterator[str]:
        """Yield the events of a piece of the answer."""
        yield from self._added(delta)

    def last(self, answer: Answer, end: Finished, prompt: int) -> Iterator[str]:
        """Yield the events that end a stream."""
        yield from self._closed()
        response = self._object(end, prompt)
        yield self._event(f"response.{response['status']}", response=response)

    def error(self, error: ApiError) -> Iterator[str]:
        """Yield the event of an error."""
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
            yield self._of_item(f"response.{part}.delta", item, content_index=0, delta=text, **_no_logprobs(item))

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
        """End the last item, if it is text in progress."""
        if not self.items or self.items[-1]["status"] != "in_progress":
            return
        item = self.items[-1]
        name, kind, _ = KINDS[item["type"]]
        part = item[name][0]
        yield self._of_item(f"response.{kind}.done", item, content_index=0, text=part["text"], **_no_logprobs(item))
        yield self._of_item("response.content_part.done", item, content_index=0, part=part)
        item["status"] = "completed"
        yield self._event("response.output_item.done", output_index=len(self.items) - 1, item=item)

    def _call(self, delta: Delta) -> Iterator[str]:
        """Yield the events of a call, which comes whole."""
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
            "output": self.items, "parallel_tool_calls": self.parallel, "tool_choice": "auto", "tools": [],
            "usage": _usage(end, prompt) if end is not None else None,
        }  # fmt: skip

    def _of_item(self, kind: str, item: Mapping[str, Any], **more: object) -> str:
        return self._event(kind, item_id=item["id"], output_index=len(self.items) - 1, **more)

    def _event(self, kind: str, **content: object) -> str:
        body = json.dumps({"type": kind, "sequence_number": self._sequence, **content}, ensure_ascii=False)
        self._sequence += 1
        return f"event: {kind}\ndata: {body}\n\n"


def _no_logprobs(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return the empty log probabilities that events of messages must have."""
    return {"logprobs": []} if item["type"] == "message" else {}


def _usage(end: Finished, prompt: int) -> dict[str, Any]:
    """Return the counts of tokens in the form of responses."""
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": end.cached_tokens},
        "output_tokens": end.stats.new_tokens,
        "output_tokens_details": {"reasoning_tokens": end.reasoning_tokens},
        "total_tokens": prompt + end.stats.new_tokens,
    }
