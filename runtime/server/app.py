"""The application: paths, and what each of them is asked."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from time import time
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from tokenizers import Tokenizer

from hybridge.cache.errors import HybridgeError, OutputError
from hybridge.runtime.core.checkpoint import PrefixCache
from hybridge.runtime.server.answering import Answering, Form, Question
from hybridge.runtime.server.answering import CompletionForm as ChatForm
from hybridge.runtime.server.connections import Connection, Listener, check_host, check_key, read_body
from hybridge.runtime.server.prompts import Prompt, Prompts, Render, ignores_tools, with_tools_in_text
from hybridge.runtime.server.requests import (
    ApiError,
    ChatRequest,
    CompletionRequest,
    GenerationRequest,
    invalid,
    of_hybridge,
    parse,
)
from hybridge.runtime.server.response_format import Structures, with_types
from hybridge.runtime.server.responses_api import ResponsesForm, ResponsesRequest
from hybridge.runtime.server.worker import Metrics, Place, Settings, Worker
from hybridge.runtime.text.answer_formats import Format, decoder_of, with_general_calls
from hybridge.runtime.text.answers import Answer, OneCall

log = logging.getLogger(__name__)

OPEN = ("/", "/health")
"""Paths that need no key: they say nothing of anybody."""

Endpoint = Callable[[Request], Awaitable[Response]]


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
        self.calling = form
        if form is None or not form.has_calls or ignores_tools(render):
            self.calling, render = with_general_calls(form), with_tools_in_text(render)
        self.prompts = Prompts(tokenizer, render, places[0].session.max_seq_len, places[0].session.manifest.eos_ids)
        self.answers = form
        self.worker = Worker(places, cache, self.metrics, settings.queue)
        self.structures = Structures(tokenizer, places[0].session.manifest, self.calling)
        self.answering = Answering(
            worker=self.worker, prompts=self.prompts, tokenizer=tokenizer, settings=settings, metrics=self.metrics,
            shown=decoder_of(self.calling, tokenizer),
        )  # fmt: skip
        self._created = int(time())

    def app(self) -> Starlette:
        """Return the application; the worker computes as long as it runs."""

        @asynccontextmanager
        async def lifespan(app: Starlette) -> AsyncIterator[None]:
            self.worker.start()
            yield
            await asyncio.to_thread(self.worker.stop)

        paths: dict[str, tuple[str, Endpoint]] = {
            "/": ("GET", self._page),
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
        return await self._talk(request, asked, self._form(asked, chat=True))

    async def _respond(self, request: Request) -> Response:
        asked = parse(ResponsesRequest, await read_body(request, self.settings.limits.body)).for_chat()
        return await self._talk(request, asked, ResponsesForm(self.settings.name))

    async def _talk(self, request: Request, asked: ChatRequest, form: Form) -> Response:
        """Answer a chat."""
        self._check_model(asked.model)
        if asked.top_logprobs is not None and not asked.logprobs:
            raise invalid("top_logprobs needs logprobs to be true.", "top_logprobs")
        self._check_tools(asked)
        prompt, answer, reasoning = await asyncio.to_thread(self._prompt, asked)
        question = Question(
            asked=asked, prompt=prompt, form=form, chat=True, most=asked.max_completion_tokens or asked.max_tokens,
            chances=(asked.top_logprobs or 0) if asked.logprobs else None,
            constrain=await self.structures.of_request(asked, reasoning), answer=answer,
        )  # fmt: skip
        return await self.answering.respond(request, question)

    def _prompt(self, asked: ChatRequest) -> tuple[Prompt, Answer, str]:
        """Return the prompt of a chat, what takes the answer apart, and what ends the reasoning that may come first."""
        variables = {**(asked.chat_template_kwargs or {}), **({"tools": asked.offered} if asked.offered else {})}
        prompt = self.prompts.of_chat(asked.messages, variables)
        form, reasoning = self.calling if asked.offered else self.answers, ""
        if form is not None and (asked.required or asked.is_structured):
            reasoning = "" if asked.required else form.reasoning_end(prompt.text)
            lead = "" if reasoning else form.lead(prompt.text, call=bool(asked.required))
            prompt = self.prompts.with_lead(prompt, lead)
        if asked.required:
            return prompt, Answer(parser=lambda _: OneCall()), reasoning
        answer = Answer() if form is None else form.answer(prompt.text, [with_types(tool) for tool in asked.offered])
        return prompt, answer, reasoning

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
            chances=asked.logprobs, constrain=await self.structures.of_request(asked),
        )  # fmt: skip
        return await self.answering.respond(request, question)

    def _form(self, asked: GenerationRequest, *, chat: bool) -> Form:
        return ChatForm(chat, self.settings.name, self.tokenizer, asked.includes_usage)

    def _check_tools(self, asked: ChatRequest) -> None:
        if asked.tool_choice not in (None, "none", "auto") and not asked.required:
            raise invalid("tool_choice asks for a tool that is not among tools.", "tool_choice")

    def _card(self) -> dict[str, Any]:
        return {"id": self.settings.name, "object": "model", "created": self._created, "owned_by": "hybridge",
                "context_length": self.prompts.longest}  # fmt: skip

    def _check_model(self, name: str | None) -> None:
        if name is not None and name != self.settings.name:
            raise ApiError(
                404,
                f"there is no model {name[:200]!r} here, but {self.settings.name!r}.",
                param="model",
                code="model_not_found",
            )

    def _guarded(self, path: str, answer: Endpoint) -> Endpoint:
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


def _error(error: ApiError) -> Response:
    headers = {401: {"www-authenticate": "Bearer"}, 429: {"retry-after": "1"}}.get(error.status, {})
    return JSONResponse(error.to_dict(), error.status, headers=headers)


async def _no_such_path(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    words: Mapping[int, str] = {404: "there is no such path", 405: "this path does not take this method"}
    return _error(ApiError(status, f"{words.get(status, 'the request failed')}: see docs/serving.md.", code="not_found"))


# The page to talk to the model at: one file, which asks this server and nobody else.


PAGE = (Path(__file__).parent / "page.html").read_text(encoding="utf-8")


def page_headers(page: str) -> dict[str, str]:
    """Return headers by which a browser runs the page's own script and style, and asks its own server alone."""
    script, style = (" ".join(f"'sha256-{each}'" for each in _hashes(page, tag)) for tag in ("script", "style"))
    policy = (
        f"default-src 'none'; script-src {script}; style-src {style}; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return {
        "content-security-policy": policy,
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cache-control": "no-cache",
    }


def _hashes(page: str, tag: str) -> Iterator[str]:
    for content in re.findall(rf"<{tag}>(.*?)</{tag}>", page, flags=re.DOTALL):
        yield base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()


# Listen on an address, until the process is told to end.


WAITING = 64
"""Connections that the system holds until they are taken."""
GRACE_SECONDS = 3
"""That answers may go on for once the process is told to end."""


def listen(app: Starlette, host: str, port: int, ready: Callable[[str], None]) -> None:
    """Serve ``app``; ``ready`` is told the URL once clients can connect. Raises OutputError for an address that is taken."""
    with bound(host, port) as opened:
        shown = f"[{host}]" if ":" in host else host
        ready(f"http://{shown}:{opened.getsockname()[1]}")
        over(app).run(sockets=[opened])


def bound(host: str, port: int) -> socket.socket:
    """Return a socket that takes connections. Raises OutputError for an address that is taken."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        opened = socket.socket(family, socket.SOCK_STREAM)
        try:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            opened.bind(address)
            opened.listen(WAITING)
        except OSError:
            opened.close()
            raise
    except OSError as error:
        said = f"{host}:{port} cannot be listened on: {error.strerror or error}."
        raise OutputError(f"{said} Give another --host or --port.") from None
    return opened


def over(app: Starlette) -> uvicorn.Server:
    """Return what runs ``app``. Nothing is logged of requests: paths and addresses are a user's own."""
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, server_header=False, date_header=False, ws="none", http=Connection,
        loop="asyncio", timeout_graceful_shutdown=GRACE_SECONDS,
    )  # fmt: skip
    server = Listener(config)
    config.app = server.limited(app)
    return server
