"""Questions to responses: each is a job of the worker, whose events become what a client gets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field, replace
from time import monotonic

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from tokenizers import Tokenizer

from hybridge.export.server.answers import Answer
from hybridge.export.server.delivery import Form, Said, by_origin, streamed, whole
from hybridge.export.server.errors import ApiError
from hybridge.export.server.inbox import Inbox
from hybridge.export.server.job import Finished, Job, Piece
from hybridge.export.server.metrics import Metrics
from hybridge.export.server.prompts import Prompt, Prompts
from hybridge.export.server.requests import GenerationRequest
from hybridge.export.server.settings import Settings
from hybridge.export.server.structures import Constrain
from hybridge.export.server.worker import Worker
from hybridge.runtime.chat.text_stream import Decoder
from hybridge.runtime.core.sampling import Sampling

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
