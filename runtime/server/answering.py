"""Questions to responses: each is a job of the worker, whose events become what a client gets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from itertools import groupby
from time import monotonic, time
from typing import Any, Protocol
from uuid import uuid4

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from tokenizers import Tokenizer

from hybridge.runtime.core.sampling import Sampling
from hybridge.runtime.core.statistics import Origin
from hybridge.runtime.server.prompts import Prompt, Prompts
from hybridge.runtime.server.requests import ApiError, GenerationRequest
from hybridge.runtime.server.response_format import Constrain
from hybridge.runtime.server.worker import Chance, Finished, Inbox, Job, Metrics, Piece, Settings, Worker
from hybridge.runtime.text.answers import Answer, Delta
from hybridge.runtime.text.text_stream import Decoder

SAMPLED = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")
"""Fields of a request that ``Sampling`` has under the same names."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """A request, its prompt, and how it is answered.

    form: makes the response's objects. chat: of messages, whose answer is remembered. most: new tokens, if the request says so;
    chances: how many best tokens to tell, if any. constrain: makes what the text follows. answer: takes it apart.
    """

    asked: GenerationRequest
    prompt: Prompt
    form: Form
    chat: bool
    most: int | None = None
    chances: int | None = None
    constrain: Constrain | None = None
    answer: Answer = field(default_factory=Answer)


@dataclass(frozen=True, kw_only=True)
class Answering:
    """Makes responses. shown: decodes what ``Answer`` looks for, too."""

    worker: Worker
    prompts: Prompts
    tokenizer: Tokenizer
    shown: Decoder
    settings: Settings
    metrics: Metrics

    async def respond(self, request: Request, question: Question) -> Response:
        """Return the whole answer, or a stream of it. Raises ApiError for what goes wrong before its first text."""
        inbox = Inbox()
        job = self._job(question, inbox)
        self.worker.submit(job)
        heard = self.heard(question, job, inbox)
        gone = asyncio.create_task(_gone(request, job))
        try:
            if not question.asked.stream:
                return await whole(job, question.form, question.answer, heard)
            first = await anext(heard)  # what goes wrong until then has a status of its own
        finally:
            gone.cancel()
        stream = streamed(job, question.form, question.answer, first, heard)
        return StreamingResponse(stream, media_type="text/event-stream", headers={"cache-control": "no-store"})

    def _job(self, question: Question, inbox: Inbox) -> Job:
        prompt, limits = question.prompt, self.settings.limits
        self.prompts.check_length(len(prompt.tokens), "messages" if question.chat else "prompt", exact=True)
        return Job(
            prompt=prompt.tokens, tokenizer=self.shown if question.chat else self.tokenizer,
            sampling=self._sampling(question.asked), max_new_tokens=question.most or limits.new_tokens,
            deadline=monotonic() + limits.seconds, stop=question.asked.stops, marks=prompt.marks,
            chances=question.chances, constrain=question.constrain, emit=inbox.put,
        )  # fmt: skip

    async def heard(self, question: Question, job: Job, inbox: Inbox) -> AsyncGenerator[Said | Finished, None]:
        """Yield what the answer makes of a job's events; where nobody listens any more it is cancelled. Raises ApiError."""
        answer, origins = question.answer, bool(question.asked.token_origins)
        texts, tokens = list[str](), list[int]()
        try:
            while True:
                events = await inbox.get()
                pieces = [each for each in events if isinstance(each, Piece)]
                texts += [each.text for each in pieces]
                tokens += [token for each in pieces for token in each.tokens]
                said = by_origin(pieces) if origins else [(None, "".join(each.text for each in pieces))]
                deltas = [replace(delta, origin=origin) for origin, text in said for delta in answer.feed(text)]
                end = events[-1]
                if isinstance(end, Finished):
                    deltas += answer.finish()
                if pieces or deltas:
                    yield Said(deltas, [each for piece in pieces for each in piece.chances])
                if isinstance(end, ApiError):
                    raise end
                if isinstance(end, Finished):
                    self._count(question, end)
                    await asyncio.to_thread(self._remember, question, end, "".join(texts), tokens)
                    yield end
                    return
        finally:
            job.cancelled = True

    def _count(self, question: Question, end: Finished) -> None:
        counts = {
            "prompt_tokens_total": len(question.prompt.tokens), "cached_tokens_total": end.known,
            "generated_tokens_total": end.stats.new_tokens, "draft_tokens_total": end.stats.proposed,
            "accepted_draft_tokens_total": end.stats.accepted,
        }  # fmt: skip
        for name, value in counts.items():
            self.metrics.add(name, value)

    def _remember(self, question: Question, end: Finished, text: str, tokens: list[int]) -> None:
        """Remember what a complete answer was made of; one that was cut or led is not as the template has it."""
        cut = any(stop in self.shown.decode(tokens) for stop in question.asked.stops)
        if question.chat and not question.prompt.lead and not cut:
            is_end = tokens and end.reason == "stop"
            self.prompts.remember(question.prompt, question.answer, text, tokens[:-1] if is_end else tokens)

    def _sampling(self, asked: GenerationRequest) -> Sampling:
        defaults = self.settings.sampling
        return Sampling(**{name: getattr(defaults if getattr(asked, name) is None else asked, name) for name in SAMPLED})


async def _gone(request: Request, job: Job) -> None:
    """Cancel a job where its client goes away."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    job.cancelled = True


# How an answer reaches a client: in one object, or in pieces as it comes.


@dataclass(frozen=True)
class Said:
    """What an answer goes on with; chances: of the tokens, if the job asked for them."""

    deltas: list[Delta]
    chances: list[Chance]


def by_origin(pieces: Sequence[Piece]) -> list[tuple[Origin | None, str]]:
    """Return the texts of pieces, those in a row that come from the same as one."""
    return [(origin, "".join(each.text for each in group)) for origin, group in groupby(pieces, lambda each: each.origin)]


class Form(Protocol):
    """Makes the objects and the events of one answer."""

    def whole(self, answer: Answer, chances: Sequence[Chance] | None, end: Finished, prompt: int) -> dict[str, Any]: ...
    def first(self) -> Iterator[str]: ...
    def piece(self, delta: Delta, chances: Sequence[Chance] | None) -> Iterator[str]: ...
    def last(self, answer: Answer, end: Finished, prompt: int) -> Iterator[str]: ...
    def error(self, error: ApiError) -> Iterator[str]: ...


async def whole(job: Job, form: Form, answer: Answer, heard: AsyncGenerator[Said | Finished, None]) -> Response:
    """Return the answer once it is there."""
    chances: list[Chance] = []
    async with aclosing(heard):
        async for each in heard:
            if isinstance(each, Finished):
                return JSONResponse(form.whole(answer, chances if job.chances is not None else None, each, len(job.prompt)))
            chances += each.chances
    raise AssertionError("a job ends with an event that says so")


async def streamed(
    job: Job, form: Form, answer: Answer, first: Said | Finished, heard: AsyncGenerator[Said | Finished, None]
) -> AsyncIterator[str]:
    """The answer as server-sent events, the last of them an error where something goes wrong on the way."""
    async with aclosing(heard):
        try:
            for event in form.first():
                yield event
            each: Said | Finished = first
            while isinstance(each, Said):
                deltas = each.deltas or ([Delta()] if each.chances else [])
                for i, delta in enumerate(deltas):
                    for event in form.piece(delta, (each.chances if i == 0 else []) if job.chances is not None else None):
                        yield event
                each = await anext(heard)
            for event in form.last(answer, each, len(job.prompt)):
                yield event
        except ApiError as error:
            for event in form.error(error):
                yield event


# What an answer looks like: the objects of chats and completions of OpenAI's API, whole and in chunks.


@dataclass
class CompletionForm:
    """Makes the objects of one answer. chat: of a conversation, or a completion of a text. with_usage: a stream says counts."""

    chat: bool
    model: str
    tokenizer: Tokenizer
    with_usage: bool = False
    id: str = field(init=False)
    created: int = field(default_factory=lambda: int(time()))

    def __post_init__(self) -> None:
        self.id = f"{'chatcmpl' if self.chat else 'cmpl'}-{uuid4().hex}"
        self._offset = self._calls = 0

    def whole(self, answer: Answer, chances: Sequence[Chance] | None, end: Finished, prompt: int) -> dict[str, Any]:
        """Return the answer in one object."""
        said = {"message": self._message(answer)} if self.chat else {"text": answer.content}
        choice = {"index": 0, **said, "logprobs": self._logprobs(chances), "finish_reason": _reason(answer, end)}
        kind = "chat.completion" if self.chat else "text_completion"
        return self._object(kind, [choice]) | {"usage": usage(end, prompt)}

    def first(self) -> Iterator[str]:
        """Yield the event that says who speaks."""
        if self.chat:
            yield event(self._chunk({"delta": {"role": "assistant", "content": ""}}, None, None))

    def piece(self, delta: Delta, chances: Sequence[Chance] | None) -> Iterator[str]:
        """Yield an event with text or a call."""
        yield event(self._chunk({"delta": self._delta(delta)} if self.chat else {"text": delta.content}, chances, None))

    def last(self, answer: Answer, end: Finished, prompt: int) -> Iterator[str]:
        """Yield the events that say why the text ends, and what was counted."""
        yield event(self._chunk({"delta": {}} if self.chat else {"text": ""}, None, _reason(answer, end)))
        if self.with_usage:
            yield event(self._object(self._kind, []) | {"usage": usage(end, prompt)})
        yield DONE

    def error(self, error: ApiError) -> Iterator[str]:
        """Yield the event of what went wrong."""
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

    def _chunk(self, said: Mapping[str, Any], chances: Sequence[Chance] | None, reason: str | None) -> dict[str, Any]:
        return self._object(self._kind, [{"index": 0, **said, "logprobs": self._logprobs(chances), "finish_reason": reason}])

    def _object(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": choices}

    def _logprobs(self, chances: Sequence[Chance] | None) -> dict[str, Any] | None:
        if chances is None:
            return None
        if self.chat:
            content = [
                {**self._token(each.token, each.logprob), "top_logprobs": [self._token(*pair) for pair in each.best]}
                for each in chances
            ]
            return {"content": content, "refusal": None}
        texts = [self._text(each.token) for each in chances]
        offsets = []
        for text in texts:
            offsets.append(self._offset)
            self._offset += len(text)
        return {
            "tokens": texts,
            "token_logprobs": [each.logprob for each in chances],
            "top_logprobs": [{self._text(token): value for token, value in each.best} for each in chances],
            "text_offset": offsets,
        }

    def _token(self, token: int, logprob: float) -> dict[str, Any]:
        text = self._text(token)
        return {"token": text, "logprob": logprob, "bytes": list(text.encode())}

    def _text(self, token: int) -> str:
        return self.tokenizer.decode([token], skip_special_tokens=False)


def _reason(answer: Answer, end: Finished) -> str:
    return "tool_calls" if answer.calls and end.reason == "stop" else end.reason


def usage(end: Finished, prompt: int) -> dict[str, Any]:
    """Return what was counted. cached_tokens: of the prompt, that were not read again."""
    stats = end.stats
    return {
        "prompt_tokens": prompt,
        "completion_tokens": stats.new_tokens,
        "total_tokens": prompt + stats.new_tokens,
        "prompt_tokens_details": {"cached_tokens": end.known},
        "completion_tokens_details": {
            "accepted_prediction_tokens": stats.accepted,
            "rejected_prediction_tokens": stats.proposed - stats.accepted,
        },
    }


def event(content: Mapping[str, Any]) -> str:
    """Return a server-sent event."""
    return f"data: {json.dumps(content, ensure_ascii=False)}\n\n"


DONE = "data: [DONE]\n\n"
