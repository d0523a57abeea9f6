"""The application over one artifact's sessions: paths of OpenAI's API, what each reads of a request, and the chat page."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from time import monotonic, time
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from hybridge.errors import HybridgeError
from hybridge.runtime.binding.checkpoint import PrefixCache
from hybridge.runtime.binding.pictures import Picture
from hybridge.runtime.binding.sampling import Sampling
from hybridge.runtime.binding.tokenizer import Tokenizer
from hybridge.runtime.server.connections import Limits, check_host, check_key, read_body
from hybridge.runtime.server.page_files import file_response, page_response
from hybridge.runtime.server.prompts import ChatRenderer, Prompt, Prompts
from hybridge.runtime.server.remote_pictures import RemotePictures
from hybridge.runtime.server.request_pictures import RequestPictures
from hybridge.runtime.server.requests import (
    ApiError,
    ChatRequest,
    CompletionRequest,
    GenerationRequest,
    ResponsesRequest,
    invalid,
    of_hybridge,
    parse,
)
from hybridge.runtime.server.responses import AnswerChunk, CompletionFormat, ResponseFormat, ResponsesFormat, streamed, whole
from hybridge.runtime.server.structure import Constrain, Structures
from hybridge.runtime.server.worker import Finished, Inbox, Job, Metrics, SessionSlot, Worker
from hybridge.runtime.text.answers import Answer, AnswerFormat, Delta, decoder_of, merged
from hybridge.runtime.text.generate import TextPiece
from hybridge.runtime.text.pictures import PictureProcessor

log = logging.getLogger(__name__)

OPEN = ("/", "/page/{name:path}", "/health")
"""Paths without a key: they reveal nothing about anybody."""
SAMPLED = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")
"""Fields of a request that ``Sampling`` has under the same names."""

Endpoint = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """Settings that hold for all requests.

    Args:
        name: the model's name.
        host: the address that the server is bound to.
        key: the API key, if one is needed.
        origins: those of web pages that may ask.
        sampling: default values for requests.
        queue: number of requests that may wait.
    """

    name: str
    host: str = "127.0.0.1"
    key: str | None = None
    origins: Sequence[str] = ()
    sampling: Sampling = field(default_factory=Sampling)
    queue: int = 32
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True, kw_only=True)
class Question:
    """A request with its prompt, and the way to answer it.

    Args:
        form: writes the response.
        chat: the prompt is a conversation, whose answer is remembered.
        most: new tokens, if the request says so.
        logprobs: number of most likely tokens to report with each.
        constrain: makes a constraint.
        answer: splits the text.
    """

    asked: GenerationRequest
    prompt: Prompt
    form: ResponseFormat
    chat: bool
    most: int | None = None
    logprobs: int | None = None
    constrain: Constrain | None = None
    answer: Answer = field(default_factory=Answer)


class Server:
    """Answers requests over the sessions of one artifact."""

    def __init__(
        self,
        slots: Sequence[SessionSlot],
        tokenizer: Tokenizer,
        render: ChatRenderer,
        cache: PrefixCache,
        settings: ServerSettings,
        form: AnswerFormat,
        pictures: PictureProcessor | None = None,
        remote: RemotePictures | None = None,
    ) -> None:
        """Make a server that does not compute before its ``app`` starts.

        Args:
            slots: sessions that take turns, over one artifact.
            tokenizer: the artifact's.
            render: renders conversations.
            cache: keeps checkpoints of what was read.
            settings: hold for all requests.
            form: of the model's answers.
            pictures: prepares the pictures of requests, for a model that takes some.
            remote: fetches pictures from addresses; left out, these are refused.
        """
        self.tokenizer, self.settings, self.metrics = tokenizer, settings, Metrics()
        self.answers = form
        session = slots[0].session
        self._eos_ids = session.manifest.eos_ids
        self.prompts = Prompts(tokenizer, render, session.max_seq_len, session.manifest.eos_ids)
        self.pictures = RequestPictures(pictures, remote, self.prompts.check_length)
        self.worker = Worker(slots, cache, self.metrics, settings.queue)
        self.structures = Structures(tokenizer, session.manifest, form)
        self.decoder = decoder_of(form, tokenizer)
        self._created = int(time())

    def app(self) -> Starlette:
        """Return the application; the worker runs as long as it does."""

        @asynccontextmanager
        async def lifespan(app: Starlette) -> AsyncIterator[None]:
            self.worker.start()
            yield
            await asyncio.to_thread(self.worker.stop)

        paths: dict[str, tuple[str, Endpoint]] = {
            "/": ("GET", self._page),
            "/page/{name:path}": ("GET", self._page_file),
            "/health": ("GET", self._health),
            "/metrics": ("GET", self._metrics),
            "/v1/models": ("GET", self._models),
            "/v1/models/{name:path}": ("GET", self._model),
            "/v1/chat/completions": ("POST", self._chat),
            "/v1/completions": ("POST", self._complete),
            "/v1/responses": ("POST", self._respond),
        }
        routes = [Route(path, self._guarded(path, answer), methods=[method]) for path, (method, answer) in paths.items()]
        cors = Middleware(
            CORSMiddleware, allow_origins=list(self.settings.origins), allow_methods=["GET", "POST"],
            allow_headers=["authorization", "content-type"],
        )  # fmt: skip
        return Starlette(
            routes=routes,
            middleware=[cors] if self.settings.origins else [],
            exception_handlers={HTTPException: _no_such_path},
            lifespan=lifespan,
        )

    # Paths

    async def _health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def _page(self, request: Request) -> Response:
        return page_response()

    async def _page_file(self, request: Request) -> Response:
        return file_response(request.path_params["name"]) or await _no_such_path(request, HTTPException(404))

    async def _metrics(self, request: Request) -> Response:
        return PlainTextResponse(self.metrics.render(), media_type="text/plain; version=0.0.4")

    async def _models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._card()]})

    async def _model(self, request: Request) -> Response:
        self._check_model(request.path_params["name"])
        return JSONResponse(self._card())

    async def _chat(self, request: Request) -> Response:
        asked = parse(ChatRequest, await read_body(request, self.settings.limits.body))
        return await self._talk(request, asked, self._form(asked, chat=True))

    async def _respond(self, request: Request) -> Response:
        asked = parse(ResponsesRequest, await read_body(request, self.settings.limits.body)).for_chat()
        return await self._talk(request, asked, ResponsesFormat(self.settings.name, asked.is_parallel))

    async def _talk(self, request: Request, asked: ChatRequest, form: ResponseFormat) -> Response:
        self._check_model(asked.model)
        if asked.top_logprobs is not None and not asked.logprobs:
            raise invalid("top_logprobs needs logprobs to be true.", "top_logprobs")
        self._check_tools(asked)
        pictures = await self.pictures.opened(asked.messages)
        prompt, answer, reasoning = await asyncio.to_thread(self._prompt, asked, pictures)
        question = Question(
            asked=asked, prompt=prompt, form=form, chat=True, most=asked.max_completion_tokens or asked.max_tokens,
            logprobs=(asked.top_logprobs or 0) if asked.logprobs else None,
            constrain=await self.structures.of_request(asked, reasoning), answer=answer,
        )  # fmt: skip
        return await self.respond(request, question)

    def _prompt(self, asked: ChatRequest, pictures: Sequence[Picture]) -> tuple[Prompt, Answer, str]:
        """Return the prompt of a chat, its empty answer, and the text that ends the reasoning that it has begun, or ""."""
        variables = {**(asked.chat_template_kwargs or {}), **({"tools": asked.offered} if asked.offered else {})}
        if asked.truncation == "auto":
            wanted = asked.max_completion_tokens or asked.max_tokens or self.settings.limits.new_tokens
            prompt = self.prompts.of_shortened_chat(asked.messages, variables, pictures, wanted)
        else:
            prompt = self.prompts.of_chat(asked.messages, variables, pictures)
        form = self.answers
        reasoning = form.reasoning_end(prompt.text) if asked.is_structured or asked.offered else ""
        if asked.is_structured and not asked.required and not reasoning:
            prompt = self.prompts.with_lead(prompt, form.lead(prompt.text))
        return prompt, form.answer(prompt.text, asked.offered, parallel=asked.is_parallel), reasoning

    async def _complete(self, request: Request) -> Response:
        asked = parse(CompletionRequest, await read_body(request, self.settings.limits.body))
        self._check_model(asked.model)
        given = asked.prompt[0] if isinstance(asked.prompt, list) and isinstance(asked.prompt[0], str) else asked.prompt
        if isinstance(given, str):
            tokens = await asyncio.to_thread(self.prompts.of_text, given)
        else:
            self.prompts.check_length(len(given), "prompt", exact=True)
            tokens = [int(token) for token in given]
        if not tokens:
            raise invalid("the prompt is empty; give at least one token.", "prompt")
        question = Question(
            asked=asked, prompt=Prompt("", tokens), form=self._form(asked, chat=False), chat=False, most=asked.max_tokens,
            logprobs=asked.logprobs, constrain=await self.structures.of_request(asked),
        )  # fmt: skip
        return await self.respond(request, question)

    def _form(self, asked: GenerationRequest, *, chat: bool) -> ResponseFormat:
        with_usage = asked.stream_options is not None and asked.stream_options.include_usage
        return CompletionFormat(chat, self.settings.name, self.tokenizer, with_usage)

    def _check_tools(self, asked: ChatRequest) -> None:
        if (asked.chat_template_kwargs or {}).get("tools") is not None:
            raise invalid("chat_template_kwargs: tools is a field of the request itself.", "chat_template_kwargs")
        if asked.tool_choice not in (None, "none", "auto") and not asked.required:
            raise invalid("tool_choice asks for a tool that is not among tools.", "tool_choice")

    def _card(self) -> dict[str, Any]:
        modalities = ["text"] if self.pictures.processor is None else ["text", "image"]
        return {"id": self.settings.name, "object": "model", "created": self._created, "owned_by": "hybridge",
                "context_length": self.prompts.longest, "input_modalities": modalities}  # fmt: skip

    def _check_model(self, name: str | None) -> None:
        if name is not None and name != self.settings.name:
            raise ApiError(
                404,
                f"there is no model {name[:200]!r} here, but {self.settings.name!r}.",
                param="model",
                code="model_not_found",
            )

    def _guarded(self, path: str, answer: Endpoint) -> Endpoint:
        """Return ``answer`` behind the checks of host and key, with errors as responses."""

        async def guarded(request: Request) -> Response:
            try:
                check_host(request, self.settings.host)
                if path not in OPEN:
                    check_key(request, self.settings.key)
                response = await answer(request)
            except ApiError as error:
                response = _error(error)
            except HybridgeError as error:
                response = _error(of_hybridge(error))
            except Exception as error:
                log.error("%s failed: %s", path, type(error).__name__)  # its message may quote a client's text
                response = _error(ApiError(500, "the request failed.", "server_error"))
            self.metrics.add("requests_total", labels=f'path="{path}",status="{response.status_code}"')
            return response

        return guarded

    # Answers

    async def respond(self, request: Request, question: Question) -> Response:
        """Return the whole answer, or a stream of it. Raises ApiError for errors before the first chunk."""
        inbox = Inbox()
        job = self._job(question, inbox)
        self.worker.submit(job)
        events = self.stream_events(question, job, inbox)
        gone = asyncio.create_task(_gone(request, job))
        try:
            if not question.asked.stream:
                return await whole(job, question.form, question.answer, events)
            first = await anext(events)  # errors before the first chunk still get an HTTP error status
        finally:
            gone.cancel()
        stream = streamed(job, question.form, question.answer, first, events)
        return StreamingResponse(stream, media_type="text/event-stream", headers={"cache-control": "no-store"})

    def _job(self, question: Question, inbox: Inbox) -> Job:
        prompt, limits = question.prompt, self.settings.limits
        self.prompts.check_length(len(prompt.tokens), "messages" if question.chat else "prompt", exact=True)
        return Job(
            prompt=prompt.tokens, tokenizer=self.decoder if question.chat else self.tokenizer,
            sampling=self._sampling(question.asked), max_new_tokens=question.most or limits.new_tokens,
            deadline=monotonic() + limits.seconds, stop=question.asked.stops, marks=prompt.marks,
            logprobs=question.logprobs, constrain=question.constrain, emit=inbox.put, pictures=prompt.pictures,
        )  # fmt: skip

    async def stream_events(self, question: Question, job: Job, inbox: Inbox) -> AsyncGenerator[AnswerChunk | Finished, None]:
        """Yield the chunks of an answer, then its end. Cancels the job if the consumer stops. Raises ApiError."""
        answer, origins = question.answer, bool(question.asked.token_origins)
        texts, tokens, is_reasoning, reasoning_tokens = list[str](), list[int](), False, 0
        try:
            while True:
                events = await inbox.get()
                pieces = [each for each in events if isinstance(each, TextPiece)]
                deltas = list[Delta]()
                for piece in pieces:
                    texts.append(piece.text)
                    tokens += piece.tokens
                    new = answer.feed(piece.text) if piece.text else []
                    is_reasoning = bool(new[-1].reasoning) if new else is_reasoning
                    reasoning_tokens += len(piece.tokens) if is_reasoning else 0
                    deltas += [replace(delta, origin=piece.origin) for delta in new] if origins else new
                deltas = merged(deltas)
                job.is_answered = answer.is_complete
                end = events[-1]
                if isinstance(end, Finished):
                    deltas += answer.finish()
                if pieces or deltas:
                    yield AnswerChunk(deltas, [each for piece in pieces for each in piece.logprobs])
                if isinstance(end, ApiError):
                    raise end
                if isinstance(end, Finished):
                    self._count(question, end)
                    await asyncio.to_thread(self._remember, question, "".join(texts), tokens)
                    yield replace(end, reasoning_tokens=reasoning_tokens)
                    return
        finally:
            job.cancelled = True

    def _count(self, question: Question, end: Finished) -> None:
        counts = {
            "prompt_tokens_total": len(question.prompt.tokens), "cached_tokens_total": end.cached_tokens,
            "generated_tokens_total": end.stats.new_tokens, "draft_tokens_total": end.stats.proposed,
            "accepted_draft_tokens_total": end.stats.accepted,
        }  # fmt: skip
        for name, value in counts.items():
            self.metrics.add(name, value)

    def _remember(self, question: Question, text: str, tokens: list[int]) -> None:
        """Remember the tokens of a complete answer, unless it was cut or a lead began it, unlike the template."""
        cut = question.answer.is_cut or any(stop in self.decoder.decode(tokens) for stop in question.asked.stops)
        if question.chat and not question.prompt.lead and not cut:
            is_end = tokens and tokens[-1] in self._eos_ids
            self.prompts.remember(question.prompt, question.answer, text, tokens[:-1] if is_end else tokens)

    def _sampling(self, asked: GenerationRequest) -> Sampling:
        defaults = self.settings.sampling
        return Sampling(**{name: getattr(defaults if getattr(asked, name) is None else asked, name) for name in SAMPLED})


async def _gone(request: Request, job: Job) -> None:
    """Cancel a job if its client disconnects."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    job.cancelled = True


def _error(error: ApiError) -> Response:
    headers = {401: {"www-authenticate": "Bearer"}, 429: {"retry-after": "1"}}.get(error.status, {})
    return JSONResponse(error.to_dict(), error.status, headers=headers)


async def _no_such_path(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    words: Mapping[int, str] = {404: "there is no such path", 405: "this path does not take this method"}
    return _error(ApiError(status, f"{words.get(status, 'the request failed')}: see docs/serving.md.", code="not_found"))
