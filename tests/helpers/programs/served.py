"""A server in this process, over a model that is a function of the last three tokens, and its clients."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from babbling import BYTES, TEMPLATE, babbler, template_of
from openai import OpenAI

from hybridge.runtime import ExportOptions, PromptLookup, Session
from hybridge.runtime.artifact.model_info import ProgramInfo
from hybridge.runtime.binding.checkpoint import PrefixCache
from hybridge.runtime.binding.jinja import JinjaTemplate
from hybridge.runtime.binding.programs import Numbers, TextProgram
from hybridge.runtime.server.app import Server, ServerSettings
from hybridge.runtime.server.connections import bound, over
from hybridge.runtime.server.prompts import ChatRenderer
from hybridge.runtime.server.worker import SessionSlot
from hybridge.runtime.text.answers import AnswerFormat

END = BYTES.token_to_id("<|im_end|>")
babble = babbler(12, END, -0.5)


class Slow(TextProgram):
    """Takes its time for each call, and counts what it reads."""

    seconds = 0.0
    read = 0

    def call(self, name: str, *inputs: Numbers) -> tuple[Numbers, ...]:
        time.sleep(self.seconds)
        before = len(self.text)
        answer = super().call(name, *inputs)
        self.read += max(0, len(self.text) - before)
        return answer


OPTIONS = ExportOptions(max_seq_len=600, prefill_chunk=16, verify_len=4, snapshot_slots=0)
BABBLE = ProgramInfo(vocab_size=260, options=OPTIONS, eos_ids=[END], identity="babble")
ENDLESS = ProgramInfo(vocab_size=260, options=OPTIONS, identity="endless")


def session(seconds: float = 0.0) -> Session:
    """A session over the model, each call of which takes so long; it never ends a text where that is any time."""
    program = Slow(babble, 600, 0)
    program.seconds = seconds
    return Session.over(program, ENDLESS if seconds else BABBLE)


def alone(prompt: list[int], most: int, **options: Any) -> str:
    """Return what the model says after ``prompt`` to whom nobody else talks."""
    new = list(session().generate(prompt, max_new_tokens=most, **options))
    return BYTES.decode(new[:-1] if new[-1] == END else new)


def chat_tokens(*texts: str) -> list[int]:
    """The prompt of a conversation whose first message is the user's."""
    messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]
    return list(BYTES.encode(template_of(TEMPLATE).render(messages).text, around=False).ids)


@dataclass(frozen=True)
class Served:
    """url: without a path; places: what computes."""

    url: str
    server: Server
    places: list[SessionSlot]

    @property
    def read(self) -> int:
        """Tokens that were read so far."""
        return sum(place.session.model.program.read for place in self.places)  # type: ignore[attr-defined]

    def gauge(self, name: str) -> float:
        return self.server.metrics._values.get((name, ""), 0)

    def wait_for(self, name: str, value: float, seconds: float = 20.0) -> None:
        """Fails where a gauge does not come to a value."""
        end = time.monotonic() + seconds
        while self.gauge(name) != value:
            assert time.monotonic() < end, f"{name} is {self.gauge(name)}, not {value}"
            time.sleep(0.005)


@contextmanager
def served(
    sessions: int = 2, seconds: float = 0.0, cache_bytes: int = 1 << 20, drafters: bool = True, **options: Any
) -> Iterator[Served]:
    """Serve the model under the name ``babble``; options are those of ``Settings``."""
    places = [SessionSlot(session(seconds), PromptLookup() if drafters else None) for _ in range(sessions)]
    with serving(places, template_of(TEMPLATE).render, cache_bytes, **options) as one:
        yield one


def unknown_form() -> AnswerFormat:
    """Return the form of a model of which nothing is known."""
    return AnswerFormat.find(JinjaTemplate(""), BYTES)


@contextmanager
def serving(
    places: list[SessionSlot],
    renderer: ChatRenderer,
    cache_bytes: int = 1 << 20,
    form: AnswerFormat | None = None,
    **options: Any,
) -> Iterator[Served]:
    """Serve what computes in ``places``. form: of its answers; left out, all of an answer is content."""
    server = Server(
        places,
        BYTES,
        renderer,
        PrefixCache(places[0].session.model, cache_bytes),
        ServerSettings(name="babble", **options),
        form or unknown_form(),
    )
    with running(server, places) as one:
        yield one


@contextmanager
def running(server: Server, places: list[SessionSlot]) -> Iterator[Served]:
    """Run a server, which computes in ``places``, in a thread of its own."""
    with bound("127.0.0.1", 0) as opened:
        runner = over(server.app())
        thread = threading.Thread(target=runner.run, kwargs={"sockets": [opened]})
        thread.start()
        try:
            while not runner.started:
                time.sleep(0.005)
            yield Served(f"http://127.0.0.1:{opened.getsockname()[1]}", server, places)
        finally:
            runner.should_exit = True
            thread.join()


CLIENTS: list[OpenAI] = []


def client(server: Served, key: str = "none") -> OpenAI:
    """OpenAI's, which ``close_clients`` closes."""
    return talking_to(f"{server.url}/v1", key)


def talking_to(url: str, key: str) -> OpenAI:
    CLIENTS.append(OpenAI(base_url=url, api_key=key, max_retries=0, timeout=120))
    return CLIENTS[-1]


def close_clients() -> None:
    """Connections are closed here, and not whenever their objects are collected."""
    while CLIENTS:
        CLIENTS.pop().close()


def user(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def chat(server: Served, messages: str | list[Any], **options: Any) -> Any:
    """Return the answer to a conversation, or to one message, that OpenAI's client gets."""
    told = user(messages) if isinstance(messages, str) else messages
    return client(server).chat.completions.create(model="babble", messages=told, **options)


def complete(server: Served, prompt: str | list[int], **options: Any) -> Any:
    """Return the completion of a text or of tokens that OpenAI's client gets."""
    return client(server).completions.create(model="babble", prompt=prompt, **options)


def ask(
    server: Served, path: str, body: Any = None, headers: dict[str, str] | None = None, method: str = "POST"
) -> tuple[int, Any]:
    """Status and content of a raw request."""
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=60)
    data = body if isinstance(body, (bytes, str)) or body is None else json.dumps(body)
    connection.request(method, path, data, {"Content-Type": "application/json", **(headers or {})})
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    return response.status, json.loads(text) if text.startswith("{") else text
