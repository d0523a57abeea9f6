"""Write responses of OpenAI's API: whole answers in one object, or server-sent events as they come."""

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
from hybridge.runtime.server.worker import Finished
from hybridge.runtime.text.answers import Answer, Delta
from hybridge.runtime.text.generate import TokenLogprobs


@dataclass(frozen=True)
class AnswerChunk:
    """A chunk of an answer. logprobs: of its tokens, if the request wants them."""

    deltas: list[Delta]
    logprobs: list[TokenLogprobs]


@dataclass
class Choice:
    """One of the texts that a request asks for.

    prompt: number of its tokens. shares: the prompt is that of an earlier choice, and counts once. has_logprobs: they are asked
    for; logprobs: so far. end: None until it has ended.
    """

    index: int
    answer: Answer
    prompt: int
    shares: bool = False
    has_logprobs: bool = False
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    end: Finished | None = None


@dataclass(frozen=True)
class Counts:
    """Numbers of tokens."""

    prompt: int
    cached: int
    new: int
    reasoning: int
    accepted: int
    rejected: int


def count_tokens(choices: Sequence[Choice]) -> Counts:
    """Count the tokens of choices, each prompt once."""
    ends = [each.end for each in choices if each.end is not None]
    proposed, accepted = (sum(getattr(end.stats, name) for end in ends) for name in ("proposed", "accepted"))
    return Counts(
        prompt=sum(each.prompt for each in choices if not each.shares),
        cached=sum(each.end.cached_tokens for each in choices if each.end is not None and not each.shares),
        new=sum(end.stats.new_tokens for end in ends), reasoning=sum(end.reasoning_tokens for end in ends),
        accepted=accepted, rejected=proposed - accepted,
    )  # fmt: skip


class ResponseFormat(Protocol):
    """Writes the objects and the events of one response."""

    def whole(self, choices: Sequence[Choice]) -> dict[str, Any]: ...
    def first(self, choices: Sequence[Choice]) -> Iterator[str]: ...
    def piece(self, choice: Choice, delta: Delta, logprobs: Sequence[TokenLogprobs] | None) -> Iterator[str]: ...
    def end(self, choice: Choice) -> Iterator[str]: ...
    def last(self, choices: Sequence[Choice]) -> Iterator[str]: ...
    def error(self, error: ApiError) -> Iterator[str]: ...


Event = tuple[Choice, AnswerChunk | Finished]


async def whole(form: ResponseFormat, choices: Sequence[Choice], events: AsyncGenerator[Event, None]) -> Response:
    """Return the response once all choices have ended."""
    async with aclosing(events):
        async for choice, each in events:
            if isinstance(each, Finished):
                choice.end = each
            else:
                choice.logprobs += each.logprobs
    return JSONResponse(form.whole(choices))


async def streamed(
    form: ResponseFormat, choices: Sequence[Choice], first: Event, events: AsyncGenerator[Event, None]
) -> AsyncIterator[str]:
    """Yield the choices as server-sent events, one after the other; an error on the way is the last event."""
    async with aclosing(events):
        try:
            for event in form.first(choices):
                yield event
            choice, each = first
            while True:
                if isinstance(each, Finished):
                    choice.end = each
                    for event in form.end(choice):
                        yield event
                else:
                    deltas = each.deltas or ([Delta()] if each.logprobs else [])
                    for i, delta in enumerate(deltas):
                        logprobs = (each.logprobs if i == 0 else []) if choice.has_logprobs else None
                        for event in form.piece(choice, delta, logprobs):
                            yield event
                following = await anext(events, None)
                if following is None:
                    break
                choice, each = following
            for event in form.last(choices):
                yield event
        except ApiError as error:
            for event in form.error(error):
                yield event


def chosen(answer: Answer) -> Iterator[Delta]:
    """Yield the parts of a whole answer in their order."""
    yield Delta(reasoning=answer.reasoning)
    yield Delta(content=answer.content)
    yield from (Delta(call=call) for call in answer.calls)


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
        self._index, self._offset, self._calls = -1, 0, 0

    def whole(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """Return the choices in one object."""
        kind = "chat.completion" if self.chat else "text_completion"
        return self._object(kind, [self._whole(each) for each in choices]) | {"usage": usage(choices)}

    def first(self, choices: Sequence[Choice]) -> Iterator[str]:
        """Yield nothing: each choice begins with an event that names its role."""
        yield from ()

    def piece(self, choice: Choice, delta: Delta, logprobs: Sequence[TokenLogprobs] | None) -> Iterator[str]:
        """Yield an event with text or a call."""
        yield from self._begun(choice)
        yield event(self._chunk({"delta": self._delta(delta)} if self.chat else {"text": delta.content}, logprobs, None))

    def end(self, choice: Choice) -> Iterator[str]:
        """Yield the event with the finish reason."""
        yield from self._begun(choice)
        yield event(self._chunk({"delta": {}} if self.chat else {"text": ""}, None, _reason(choice)))

    def last(self, choices: Sequence[Choice]) -> Iterator[str]:
        """Yield the events with the counts and the end."""
        if self.with_usage:
            yield event(self._object(self._kind, []) | {"usage": usage(choices)})
        yield DONE

    def error(self, error: ApiError) -> Iterator[str]:
        """Yield the event of an error."""
        yield event(error.to_dict())

    def _begun(self, choice: Choice) -> Iterator[str]:
        """Yield the event that names the role, if this is a choice's first one."""
        if choice.index == self._index:
            return
        self._begin(choice)
        if self.chat:
            yield event(self._chunk({"delta": {"role": "assistant", "content": ""}}, None, None))

    def _begin(self, choice: Choice) -> None:
        self._index, self._offset, self._calls, self._stream = choice.index, 0, 0, self.tokenizer.stream()

    def _whole(self, choice: Choice) -> dict[str, Any]:
        self._begin(choice)
        answer = choice.answer
        content = answer.content if answer.content or not answer.calls else None
        message = {**answer.message(), "content": content, "refusal": None}
        said = {"message": message} if self.chat else {"text": answer.content}
        logprobs = self._logprobs(choice.logprobs if choice.has_logprobs else None)
        return {"index": choice.index, **said, "logprobs": logprobs, "finish_reason": _reason(choice)}

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
        return self._object(
            self._kind, [{"index": self._index, **said, "logprobs": self._logprobs(logprobs), "finish_reason": reason}]
        )

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
            "top_logprobs": [
                None if each.logprob is None else {self._text(token): value for token, value in each.best} for each in logprobs
            ],
            "text_offset": offsets,
        }

    def _token(self, token: int, logprob: float | None) -> dict[str, Any]:
        added = self.tokenizer.token_bytes(token)
        return {"token": added.decode(errors="replace"), "logprob": logprob, "bytes": list(added)}

    def _text(self, token: int) -> str:
        return self.tokenizer.token_bytes(token).decode(errors="replace")


def _reason(choice: Choice) -> str:
    assert choice.end is not None
    return "tool_calls" if choice.answer.calls and choice.end.reason == "stop" else choice.end.reason


def usage(choices: Sequence[Choice]) -> dict[str, Any]:
    """Return the counts of tokens in the form of completions."""
    counts = count_tokens(choices)
    return {
        "prompt_tokens": counts.prompt,
        "completion_tokens": counts.new,
        "total_tokens": counts.prompt + counts.new,
        "prompt_tokens_details": {"cached_tokens": counts.cached},
        "completion_tokens_details": {
            "reasoning_tokens": counts.reasoning,
            "accepted_prediction_tokens": counts.accepted,
            "rejected_prediction_tokens": counts.rejected,
        },
    }


def event(content: Mapping[str, Any]) -> str:
    """Return a server-sent event."""
    return f"data: {json.dumps(content, ensure_ascii=False)}\n\n"


def named_event(kind: str, **content: object) -> str:
    """Return a server-sent event that has its type as its name, too."""
    return f"event: {kind}\n" + event({"type": kind, **content})


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

    def whole(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """Return the answer in one object."""
        for delta in chosen(choices[0].answer):
            list(self._added(delta))
        list(self._closed())
        return self._object(choices[0])

    def first(self, choices: Sequence[Choice]) -> Iterator[str]:
        """Yield the events that begin a stream."""
        for kind in ("created", "in_progress"):
            yield self._event(f"response.{kind}", response=self._object(choices[0]))

    def piece(self, choice: Choice, delta: Delta, logprobs: Sequence[TokenLogprobs] | None) -> Iterator[str]:
        """Yield the events of a piece of the answer."""
        yield from self._added(delta)

    def end(self, choice: Choice) -> Iterator[str]:
        """Yield the events that end a stream."""
        yield from self._closed()
        response = self._object(choice)
        yield self._event(f"response.{response['status']}", response=response)

    def last(self, choices: Sequence[Choice]) -> Iterator[str]:
        """Yield nothing: the response has ended."""
        yield from ()

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

    def _object(self, choice: Choice) -> dict[str, Any]:
        end = choice.end
        cut = end is not None and end.reason == "length"
        return {
            "id": self.id, "object": "response", "created_at": self.created, "model": self.model,
            "status": "in_progress" if end is None else "incomplete" if cut else "completed",
            "error": None, "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": self.items, "parallel_tool_calls": self.parallel, "tool_choice": "auto", "tools": [],
            "usage": _usage(choice) if end is not None else None,
        }  # fmt: skip

    def _of_item(self, kind: str, item: Mapping[str, Any], **more: object) -> str:
        return self._event(kind, item_id=item["id"], output_index=len(self.items) - 1, **more)

    def _event(self, kind: str, **content: object) -> str:
        self._sequence += 1
        return named_event(kind, sequence_number=self._sequence - 1, **content)


def _no_logprobs(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return the empty log probabilities that events of messages must have."""
    return {"logprobs": []} if item["type"] == "message" else {}


def _usage(choice: Choice) -> dict[str, Any]:
    """Return the counts of tokens in the form of responses."""
    counts = count_tokens([choice])
    return {
        "input_tokens": counts.prompt,
        "input_tokens_details": {"cached_tokens": counts.cached},
        "output_tokens": counts.new,
        "output_tokens_details": {"reasoning_tokens": counts.reasoning},
        "total_tokens": counts.prompt + counts.new,
    }
