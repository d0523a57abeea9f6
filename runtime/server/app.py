"""The application over one artifact's sessions: paths of OpenAI's API, what each reads of a request, and the chat page."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, fields, replace
from time import monotonic, time
from typing import Any, TypeVar

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
from hybridge.runtime.server.messages import MessagesFormat, MessagesRequest, error_object
from hybridge.runtime.server.page_files import file_response, page_response
from hybridge.runtime.server.prompts import ChatRenderer, Prompt, Prompts
from hybridge.runtime.server.remote_pictures import RemotePictures
from hybridge.runtime.server.request_pictures import RequestPictures
from hybridge.runtime.server.requests import (
    ApiError,
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    GenerationRequest,
    TokenizeRequest,
    invalid,
    of_hybridge,
    parse,
)
from hybridge.runtime.server.response_items import ResponsesRequest
from hybridge.runtime.server.responses import (
    AnswerChunk,
    Choice,
    CompletionFormat,
    Event,
    ResponseFormat,
    ResponsesFormat,
    count_tokens,
    streamed,
    whole,
)
from hybridge.runtime.server.structure import Constrain, Structures
from hybridge.runtime.server.worker import Finished, Inbox, Job, Metrics, SessionSlot, Worker
from hybridge.runtime.text.answers import Answer, AnswerFormat, Delta, decoder_of, merged
from hybridge.runtime.text.generate import TextPiece, with_dry_breakers
from hybridge.runtime.text.pictures import PictureProcessor
from hybridge.runtime.version import __version__

log = logging.getLogger(__name__)

OPEN = ("/", "/page/{name:path}", "/health")
"""Paths without a key: they reveal nothing about anybody."""
IGNORED_HEADER = "x-hybridge-ignored"
"""Header of a response with the names of the request's fields that did nothing."""

Asked = TypeVar("Asked", bound=GenerationRequest)
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
        strict: refuse unknown fields of requests.
        thinking_switch: the chat template's variable that switches thinking, or "".
        chat_template: the template's source.
        tell: takes a line for each request. verbose: prompts, too.
    """

    name: str
    host: str = "127.0.0.1"
    key: str | None = None
    origins: Sequence[str] = ()
    sampling: Sampling = field(default_factory=Sampling)
    queue: int = 32
    limits: Limits = field(default_factory=Limits)
    strict: bool = False
    thinking_switch: str = ""
    chat_template: str = ""
    tell: Callable[[str], None] = lambda _: None
    verbose: bool = False


@dataclass(frozen=True, kw_only=True)
class Question:
    """One text that a request asks for: its prompt, and the way to answer it.

    Args:
        chat: the prompt is a conversation, whose answer is remembered.
        most: new tokens, if the request says so.
        echo: the prompt's text, which the text begins with.
        logprobs: number of most likely tokens to report with each.
        constrain: makes a constraint.
        answer: splits the text.
        is_again: the prompt is that of the question before.
    """

    asked: GenerationRequest
    prompt: Prompt
    chat: bool
    sampling: Sampling
    most: int | None = None
    echo: str | None = None
    logprobs: int | None = None
    constrain: Constrain | None = None
    answer: Answer = field(default_factory=Answer)
    is_again: bool = False


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
        self._bos_id, self._eos_ids = session.manifest.bos_id, session.manifest.eos_ids
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
            "/v1/messages": ("POST", self._message),
            "/v1/messages/count_tokens": ("POST", self._count_message),
            "/v1/embeddings": ("POST", self._embed),
            "/tokenize": ("POST", self._tokenize),
            "/detokenize": ("POST", self._detokenize),
            "/tokenizer_info": ("GET", self._tokenizer_info),
            "/props": ("GET", self._props),
        }
        routes = [Route(path, self._guarded(path, answer), methods=[method]) for path, (method, answer) in paths.items()]
        cors = Middleware(
            CORSMiddleware, allow_origins=list(self.settings.origins), allow_methods=["GET", "POST"],
            allow_headers=["authorization", "content-type", "x-api-key", "anthropic-version"],
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
        asked = await self._parse(request, ChatRequest)
        return await self._talk(request, asked, self._form(asked, chat=True))

    async def _respond(self, request: Request) -> Response:
        asked = (await self._parse(request, ResponsesRequest)).for_chat()
        return await self._talk(request, asked, ResponsesFormat(self.settings.name, asked.is_parallel))

    async def _message(self, request: Request) -> Response:
        asked = (await self._parse(request, MessagesRequest)).for_chat()
        return await self._talk(request, asked, MessagesFormat(self.settings.name))

    async def _count_message(self, request: Request) -> Response:
        asked = (await self._parse(request, MessagesRequest)).for_chat()
        prompt, _, _ = await asyncio.to_thread(self._prompt, asked, await self.pictures.opened(asked.messages))
        return JSONResponse({"input_tokens": len(prompt.tokens)})

    async def _embed(self, request: Request) -> Response:
        await read_body(request, self.settings.limits.body)
        raise invalid(f"{self.settings.name} writes texts and was not made for embeddings.", "model", "unsupported_model")

    async def _tokenize(self, request: Request) -> Response:
        asked = await self._parse(request, TokenizeRequest)
        if asked.prompt is not None:
            text, around = asked.prompt, asked.add_special_tokens
        elif asked.content is not None:
            text, around = asked.content, asked.add_special
        else:
            raise invalid("content: give the text.", "content")
        ids = (await asyncio.to_thread(self.tokenizer.encode, text, around=around)).ids
        shown = [{"id": each, "piece": self.tokenizer.id_to_token(each)} for each in ids] if asked.with_pieces else ids
        return JSONResponse({"tokens": shown, "count": len(ids), "max_model_len": self.prompts.longest})

    async def _detokenize(self, request: Request) -> Response:
        asked = await self._parse(request, DetokenizeRequest)
        text = await asyncio.to_thread(self.tokenizer.decode, asked.tokens, False)
        return JSONResponse({"content": text, "prompt": text})

    async def _tokenizer_info(self, request: Request) -> Response:
        begin, end = self._bos_id, next(iter(self._eos_ids), None)
        named = {"bos_token": begin, "eos_token": end}
        tokens = {name: None if each is None else self.tokenizer.id_to_token(each) for name, each in named.items()}
        return JSONResponse({**tokens, "chat_template": self.settings.chat_template})

    async def _props(self, request: Request) -> Response:
        sampling = {each.name: getattr(self.settings.sampling, each.name) for each in fields(Sampling)}
        params = {name: value for name, value in sampling.items() if name not in ("dry_breakers", "logit_bias", "seed")}
        return JSONResponse({
            "default_generation_settings": {"n_ctx": self.prompts.longest, "params": params},
            "total_slots": self.worker.slots, "model_alias": self.settings.name, "chat_template": self.settings.chat_template,
            "modalities": {"vision": self.pictures.takes_some, "audio": False},
            "build_info": f"hybridge {__version__}",
        })  # fmt: skip

    async def _parse(self, request: Request, kind: type[Asked]) -> Asked:
        """Return the body of a request, whose ignored fields the response will name. Raises ApiError."""
        asked = parse(kind, await read_body(request, self.settings.limits.body), self.settings.strict)
        request.state.ignored = asked.ignored
        self._check_model(asked.model)
        return asked

    async def _talk(self, request: Request, asked: ChatRequest, form: ResponseFormat) -> Response:
        self._check_tools(asked)
        pictures = await self.pictures.opened(asked.messages)
        prompt, answer, reasoning = await asyncio.to_thread(self._prompt, asked, pictures)
        question = Question(
            asked=asked, prompt=prompt, chat=True, most=asked.most_tokens, sampling=self._sampling(asked),
            logprobs=(asked.top_logprobs or 0) if asked.logprobs else None,
            constrain=await self.structures.of_request(asked, reasoning), answer=answer,
        )  # fmt: skip
        more = [
            replace(
                question, sampling=self._sampling(asked, i), is_again=True,
                answer=self.answers.answer(prompt.text, asked.offered, parallel=asked.is_parallel),
            )
            for i in range(1, asked.n or 1)
        ]  # fmt: skip
        if asked.stop_after_reasoning:
            for each in (question, *more):
                each.answer.stop_at(asked.stops)
        return await self.respond(request, form, [question, *more])

    def _prompt(self, asked: ChatRequest, pictures: Sequence[Picture]) -> tuple[Prompt, Answer, str]:
        """Return the prompt of a chat, its empty answer, and the text that ends the reasoning that it has begun, or ""."""
        variables, form = asked.variables(self.settings.thinking_switch), self.answers
        begun = asked.messages[-1] if asked.messages[-1].role == "assistant" else None
        if begun is not None and (begun.tool_calls or begun.pictures):
            raise invalid("the last message is the model's own and calls tools: give their results.", "messages")
        messages = asked.messages if begun is None else asked.messages[:-1]
        if not messages:
            raise invalid("there is nothing to answer but the model's own message; give one of the user.", "messages")
        if asked.truncation == "auto":
            wanted = asked.most_tokens or self.settings.limits.new_tokens or self.prompts.longest
            prompt = self.prompts.of_shortened_chat(messages, variables, pictures, wanted)
        else:
            prompt = self.prompts.of_chat(messages, variables, pictures)
        if begun is not None:  # what the model has said already, and goes on with
            prompt = self.prompts.with_lead(prompt, form.lead(prompt.text) + str(begun.for_template()["content"]))
        reasoning = form.reasoning_end(prompt.text) if asked.is_structured or asked.offered else ""
        if begun is None and asked.is_structured and not asked.required and not reasoning:
            prompt = self.prompts.with_lead(prompt, form.lead(prompt.text))
        return prompt, form.answer(prompt.text, asked.offered, parallel=asked.is_parallel), reasoning

    async def _complete(self, request: Request) -> Response:
        asked = await self._parse(request, CompletionRequest)
        constrain = await self.structures.of_request(asked)
        questions = []
        for given in asked.prompts:
            if isinstance(given, str):
                tokens = await asyncio.to_thread(self.prompts.of_text, given)
            else:
                tokens = given
            if not tokens:
                raise invalid("the prompt is empty; give at least one token.", "prompt")
            self.prompts.check_length(len(tokens), "prompt", exact=True)
            text = self.tokenizer.decode(tokens) if not isinstance(given, str) and asked.echo else given
            questions += [
                Question(
                    asked=asked, prompt=Prompt("", tokens), chat=False, most=asked.max_tokens,
                    sampling=self._sampling(asked, i),
                    echo=str(text) if asked.echo else None, logprobs=asked.logprobs, constrain=constrain, is_again=i > 0,
                )
                for i in range(asked.n or 1)
            ]  # fmt: skip
        return await self.respond(request, self._form(asked, chat=False), questions)

    def _form(self, asked: GenerationRequest, *, chat: bool) -> ResponseFormat:
        with_usage = asked.stream_options is not None and asked.stream_options.include_usage
        return CompletionFormat(chat, self.settings.name, self.tokenizer, with_usage)

    def _check_tools(self, asked: ChatRequest) -> None:
        if (asked.chat_template_kwargs or {}).get("tools") is not None:
            raise invalid("chat_template_kwargs: tools is a field of the request itself.", "chat_template_kwargs")
        if asked.tool_choice not in (None, "none", "auto") and not asked.required:
            raise invalid("tool_choice asks for a tool that is not among tools.", "tool_choice")

    def _card(self) -> dict[str, Any]:
        modalities = ["text", "image"] if self.pictures.takes_some else ["text"]
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
            request.state.began, request.state.ignored = monotonic(), []
            try:
                check_host(request, self.settings.host)
                if path not in OPEN:
                    check_key(request, self.settings.key)
                response = await answer(request)
            except ApiError as error:
                response = _error(error, path)
            except HybridgeError as error:
                response = _error(of_hybridge(error), path)
            except Exception as error:
                log.error("%s failed: %s", path, type(error).__name__)  # its message may quote a client's text
                response = _error(ApiError(500, "the request failed.", "server_error"), path)
            if request.state.ignored:
                names = ", ".join(name[:64] for name in request.state.ignored)
                response.headers[IGNORED_HEADER] = names.encode("ascii", "replace").decode()
            self.metrics.add("requests_total", labels=f'path="{path}",status="{response.status_code}"')
            if response.status_code != 200:
                self.settings.tell(f"{request.method} {path}: {response.status_code}")
            return response

        return guarded

    # Answers

    async def respond(self, request: Request, form: ResponseFormat, questions: Sequence[Question]) -> Response:
        """Return whole texts, or a stream of them. Raises ApiError for errors before the first chunk."""
        choices = [
            Choice(i, each.answer, len(each.prompt.tokens), each.is_again, each.logprobs is not None)
            for i, each in enumerate(questions)
        ]
        run = Run(monotonic() + self.settings.limits.seconds)
        events = self._events(request, questions, choices, run)
        gone = asyncio.create_task(_gone(request, run))
        try:
            if not questions[0].asked.stream:
                return await whole(form, choices, events)
            first = await anext(events)  # errors before the first chunk still get an HTTP error status
        finally:
            gone.cancel()
        stream = streamed(form, choices, first, events)
        return StreamingResponse(stream, media_type="text/event-stream", headers={"cache-control": "no-store"})

    async def _events(
        self, request: Request, questions: Sequence[Question], choices: Sequence[Choice], run: Run
    ) -> AsyncGenerator[Event, None]:
        """Yield the chunks and the end of each choice, one choice after the other: later ones find the prompt read."""
        try:
            for question, choice in zip(questions, choices, strict=True):
                inbox = Inbox()
                run.job = self._job(question, inbox, run)
                self.worker.submit(run.job)
                async with aclosing(self.stream_events(question, run.job, inbox)) as events:
                    async for each in events:
                        yield choice, each
        finally:
            self._tell(request, questions, choices)

    def _tell(self, request: Request, questions: Sequence[Question], choices: Sequence[Choice]) -> None:
        """Log a request that has ended, and its prompts if the server is verbose."""
        if not questions[0].asked.stream and choices[0].end is None:
            return  # an error, which is logged by its status
        counts, seconds = count_tokens(choices), monotonic() - request.state.began
        cut = "" if all(each.end is not None for each in choices) else ", not to the end"
        self.settings.tell(
            f"{request.method} {request.url.path} {self.settings.name}: {counts.prompt} tokens read, of them {counts.cached} "
            f"cached, {counts.new} written, {seconds:.2f} s{cut}"
        )
        if self.settings.verbose:
            for each in questions:
                if not each.is_again:
                    self.settings.tell(self.tokenizer.decode([token for token in each.prompt.tokens if token >= 0], False))

    def _job(self, question: Question, inbox: Inbox, run: Run) -> Job:
        prompt, most = question.prompt, question.most
        self.prompts.check_length(len(prompt.tokens), "messages" if question.chat else "prompt", exact=True)
        return Job(
            prompt=prompt.tokens, tokenizer=self.decoder if question.chat else self.tokenizer, sampling=question.sampling,
            max_new_tokens=self.settings.limits.new_tokens if most is None else most, deadline=run.deadline,
            stop=() if question.answer.has_stops else question.asked.stops, marks=prompt.marks, echo=question.echo,
            logprobs=question.logprobs, constrain=question.constrain, emit=inbox.put,
            pictures=prompt.pictures, cancelled=run.is_gone,
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
                    said = self.decoder.decode(tokens) if answer.has_stopped or not answer.has_stops else ""
                    stopped = max((each for each in question.asked.stops if each in said), key=said.rfind, default=None)
                    if stopped is None and not answer.is_cut:
                        await asyncio.to_thread(self._remember, question, "".join(texts), tokens)
                    reason = "stop" if answer.has_stopped else end.reason
                    yield replace(end, reason=reason, reasoning_tokens=reasoning_tokens, stop_string=stopped)
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
        """Remember the tokens of a complete answer, unless a lead began it, unlike the template."""
        if question.chat and not question.prompt.lead:
            is_end = tokens and tokens[-1] in self._eos_ids
            self.prompts.remember(question.prompt, question.answer, text, tokens[:-1] if is_end else tokens)

    def _sampling(self, asked: GenerationRequest, choice: int = 0) -> Sampling:
        return with_dry_breakers(asked.sampling(self.settings.sampling, choice), self.tokenizer)


@dataclass
class Run:
    """The texts of a request, of which one is generated at a time. deadline: by ``time.monotonic``."""

    deadline: float
    job: Job | None = None
    is_gone: bool = False

    def cancel(self) -> None:
        """End the text that is generated, and begin no other."""
        self.is_gone = True
        if self.job is not None:
            self.job.cancelled = True


async def _gone(request: Request, run: Run) -> None:
    """Cancel what runs if its client disconnects."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    run.cancel()


def _error(error: ApiError, path: str = "") -> Response:
    headers = {401: {"www-authenticate": "Bearer"}, 429: {"retry-after": "1"}}.get(error.status, {})
    content = error_object(error) if path.startswith("/v1/messages") else error.to_dict()
    return JSONResponse(content, error.status, headers=headers)


async def _no_such_path(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    words: Mapping[int, str] = {404: "there is no such path", 405: "this path does not take this method"}
    return _error(ApiError(status, f"{words.get(status, 'the request failed')}: see docs/serving.md.", code="not_found"))
