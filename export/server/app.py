"""The application: paths, and how a request becomes a job and its events a response."""

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
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from tokenizers import Tokenizer

from hybridge.cache.errors import HybridgeError
from hybridge.export.server.answers import Answer, OneCall, ShownTokens
from hybridge.export.server.delivery import Said, by_origin, streamed, whole
from hybridge.export.server.errors import ApiError, invalid, of_hybridge
from hybridge.export.server.formats import Format, shown_tokens
from hybridge.export.server.guard import Limits, check_host, check_key, read_body
from hybridge.export.server.inbox import Inbox
from hybridge.export.server.job import Finished, Job, Piece, Place
from hybridge.export.server.metrics import Metrics
from hybridge.export.server.page import PAGE, page_headers
from hybridge.export.server.prompts import Prompt, Prompts, Render
from hybridge.export.server.requests import ChatRequest, CompletionRequest, GenerationRequest, parse
from hybridge.export.server.responses import Form
from hybridge.export.server.structures import Structures
from hybridge.export.server.worker import Worker
from hybridge.runtime.generation.sampling import Sampling
from hybridge.runtime.sessions.prefix_cache import PrefixCache

log = logging.getLogger(__name__)

OPEN = ("/", "/health")
"""Paths that need no key: they say nothing of anybody."""

Path = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """name: the model's; host: what the server is bound to; key: the API key, if it wants one; origins: those of web pages
    that may ask; sampling: where a request says nothing; queue: requests that may wait.
    """

    name: str
    host: str = "127.0.0.1"
    key: str | None = None
    origins: Sequence[str] = ()
    sampling: Sampling = field(default_factory=Sampling)
    queue: int = 32
    limits: Limits = field(default_factory=Limits)


class Server:
    """Answers requests over the sessions of one artifact."""

    def __init__(
        self,
        places: Sequence[Place],
        tokenizer: Tokenizer,
        render: Render,
        cache: PrefixCache,
        settings: Settings,
        form: Format | None = None,
    ) -> None:
        """form: how the model writes calls and reasoning, if it does."""
        self.tokenizer, self.settings, self.metrics = tokenizer, settings, Metrics()
        self.prompts = Prompts(tokenizer, render, places[0].session.manifest.eos_ids)
        self.answers = form
        self._shown = ShownTokens(tokenizer, shown_tokens(form, tokenizer))
        self.worker = Worker(places, cache, self.metrics, settings.queue)
        self._created = int(time())
        self.structures = Structures(tokenizer, places[0].session.manifest)
        self._longest = places[0].session.max_seq_len

    def app(self) -> Starlette:
        """Return the application; the worker computes as long as it runs."""

        @asynccontextmanager
        async def lifespan(app: Starlette) -> AsyncIterator[None]:
            self.worker.start()
            yield
            await asyncio.to_thread(self.worker.stop)

        paths: dict[str, tuple[str, Path]] = {
            "/": ("GET", self._page),
            "/health": ("GET", self._health),
            "/metrics": ("GET", self._metrics),
            "/v1/models": ("GET", self._models),
            "/v1/models/{name:path}": ("GET", self._model),
            "/v1/chat/completions": ("POST", self._chat),
            "/v1/completions": ("POST", self._complete),
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
        return HTMLResponse(PAGE, headers=page_headers(PAGE))

    async def _metrics(self, request: Request) -> Response:
        return PlainTextResponse(self.metrics.render(), media_type="text/plain; version=0.0.4")

    async def _models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._card()]})

    async def _model(self, request: Request) -> Response:
        self._check_model(request.path_params["name"])
        return JSONResponse(self._card())

    async def _chat(self, request: Request) -> Response:
        asked = parse(ChatRequest, await read_body(request, self.settings.limits.body))
        if asked.top_logprobs is not None and not asked.logprobs:
            raise invalid("top_logprobs needs logprobs to be true.", "top_logprobs")
        self._check_tools(asked)
        variables = {**(asked.chat_template_kwargs or {}), **({"tools": asked.offered} if asked.offered else {})}
        prompt = self.prompts.of_chat(asked.messages, variables)
        if self.answers is not None and (asked.required or asked.is_structured):
            prompt = self.prompts.with_lead(prompt, self.answers.lead(prompt.text, call=bool(asked.required)))
        most = asked.max_completion_tokens or asked.max_tokens
        chances = (asked.top_logprobs or 0) if asked.logprobs else None
        return await self._answer(request, asked, prompt, most, chances, self._answer_to(prompt, asked))

    async def _complete(self, request: Request) -> Response:
        asked = parse(CompletionRequest, await read_body(request, self.settings.limits.body))
        given = asked.prompt[0] if isinstance(asked.prompt, list) and isinstance(asked.prompt[0], str) else asked.prompt
        tokens = self.tokenizer.encode(given).ids if isinstance(given, str) else [int(token) for token in given]
        if not tokens:
            raise invalid("the prompt is empty; give at least one token.", "prompt")
        return await self._answer(request, asked, Prompt("", tokens), asked.max_tokens, asked.logprobs, None)

    def _answer_to(self, prompt: Prompt, asked: ChatRequest) -> Answer:
        """Return what takes an answer apart."""
        if asked.required:
            return Answer(parser=lambda _: OneCall())
        return Answer() if self.answers is None else self.answers.answer(prompt.text, asked.offered)

    def _check_tools(self, asked: ChatRequest) -> None:
        if asked.offered and (self.answers is None or not self.answers.has_calls):
            message = "this model's chat template has no form of calls that is known; leave tools out."
            raise invalid(message, "tools", "unsupported_parameter")
        if asked.tool_choice not in (None, "none", "auto") and not asked.required:
            raise invalid("tool_choice asks for a tool that is not among tools.", "tool_choice")

    # A job and its events

    async def _answer(
        self, request: Request, asked: GenerationRequest, prompt: Prompt, most: int | None, chances: int | None,
        spoken: Answer | None,
    ) -> Response:  # fmt: skip
        """spoken: takes the answer of a chat apart."""
        self._check_model(asked.model)
        chat, answer = spoken is not None, spoken or Answer()
        if len(prompt.tokens) >= self._longest:
            raise invalid(
                f"the prompt has {len(prompt.tokens)} tokens, and a context of {self._longest} leaves no room for an answer.",
                "messages" if chat else "prompt", "context_length_exceeded",
            )  # fmt: skip
        inbox = Inbox()
        limits = self.settings.limits
        job = Job(
            prompt=prompt.tokens, tokenizer=self._shown if chat else self.tokenizer, sampling=self._sampling(asked),
            max_new_tokens=most or limits.new_tokens, deadline=monotonic() + limits.seconds, stop=asked.stops,
            marks=prompt.marks, chances=chances, grammar=await self.structures.of_request(asked),
            emit=inbox.put,
        )  # fmt: skip
        self.worker.submit(job)
        form = Form(chat, self.settings.name, self.tokenizer)
        heard = self._heard(job, prompt, inbox, answer, chat=chat, origins=bool(asked.token_origins))
        gone = asyncio.create_task(_gone(request, job))
        try:
            if not asked.stream:
                return await whole(job, form, answer, heard)
            first = await anext(heard)  # what goes wrong until then has a status of its own
        finally:
            gone.cancel()
        stream = streamed(job, form, answer, first, heard, with_usage=asked.includes_usage)
        return StreamingResponse(stream, media_type="text/event-stream", headers={"cache-control": "no-store"})

    async def _heard(
        self, job: Job, prompt: Prompt, inbox: Inbox, answer: Answer, *, chat: bool, origins: bool = False
    ) -> AsyncGenerator[Said | Finished, None]:
        """Yield what ``answer`` makes of a job's events; where nobody listens any more it is cancelled. Raises ApiError."""
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
                    self._count(end, len(prompt.tokens))
                    if chat and not prompt.lead and not any(stop in self._shown.decode(tokens) for stop in job.stop):
                        is_end = tokens and end.reason == "stop"
                        self.prompts.remember(prompt, answer, "".join(texts), tokens[:-1] if is_end else tokens)
                    yield end
                    return
        finally:
            job.cancelled = True

    def _count(self, end: Finished, prompt: int) -> None:
        counts = {
            "prompt_tokens_total": prompt, "cached_tokens_total": end.known, "generated_tokens_total": end.stats.new_tokens,
            "draft_tokens_total": end.stats.proposed, "accepted_draft_tokens_total": end.stats.accepted,
        }  # fmt: skip
        for name, value in counts.items():
            self.metrics.add(name, value)

    def _sampling(self, asked: GenerationRequest) -> Sampling:
        names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")
        defaults = self.settings.sampling
        values = {name: getattr(defaults if getattr(asked, name) is None else asked, name) for name in names}
        return Sampling(**values)

    def _card(self) -> dict[str, Any]:
        return {"id": self.settings.name, "object": "model", "created": self._created, "owned_by": "hybridge",
                "context_length": self._longest}  # fmt: skip

    def _check_model(self, name: str | None) -> None:
        if name is not None and name != self.settings.name:
            raise ApiError(
                404,
                f"there is no model {name[:200]!r} here, but {self.settings.name!r}.",
                param="model",
                code="model_not_found",
            )

    def _guarded(self, path: str, answer: Path) -> Path:
        """Let in who may come, and tell others why not."""

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
                log.error("%s failed: %s", path, type(error).__name__)  # what the exception says may be a client's text
                response = _error(ApiError(500, "the request failed.", "server_error"))
            self.metrics.add("requests_total", labels=f'path="{path}",status="{response.status_code}"')
            return response

        return guarded


async def _gone(request: Request, job: Job) -> None:
    """Cancel a job where its client goes away."""
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
