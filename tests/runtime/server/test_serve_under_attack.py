"""A server that somebody means harm: half-sent requests, huge prompts, templates that never end, and signals meanwhile."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
from checkout import HELPERS
from scripted import TEMPLATE, speaker
from served import BYTES, Served, ask, chat, chat_tokens, served, user
from tokenizers import Tokenizer as Reference

from hybridge.runtime.binding.jinja import RenderedChat
from hybridge.runtime.binding.tokenizer import Encoding, Tokenizer
from hybridge.runtime.server import connections
from hybridge.runtime.server.prompts import Prompts
from hybridge.runtime.server.requests import ApiError

LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def opened(babbling_server: Served, sent: bytes) -> socket.socket:
    """A connection over which something was sent."""
    host, _, port = urlsplit(babbling_server.url).netloc.rpartition(":")
    connection = socket.create_connection((host, int(port)), timeout=10)
    connection.sendall(sent)
    return connection


def healthy(babbling_server: Served) -> float:
    """The seconds that it takes to be told that all is well."""
    begun = time.monotonic()
    assert ask(babbling_server, "/health", method="GET") == (200, {"status": "ok"})
    return time.monotonic() - begun


# Connections


@pytest.mark.parametrize("line", [b"GET /\r\n", b"GET / HTTP/0.9\r\n", b"\r\nnonsense\n"])
def test_what_is_no_line_of_http_1_is_refused_at_once(babbling_server: Served, line: bytes) -> None:
    with opened(babbling_server, line) as connection:
        assert connection.recv(100).startswith(b"HTTP/1.1 400 ")


def test_a_head_in_pieces_is_a_head(babbling_server: Served) -> None:
    with opened(babbling_server, b"GET /hea") as connection:
        for piece in (b"lth HTTP/1.1\r\n", b"Host: localhost\r\n", b"\r\n"):
            time.sleep(0.02)
            connection.sendall(piece)
        assert connection.recv(100).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    "sent", [b"", b"GET / HTTP/1.1\r\nHost: a", b"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\na"]
)
def test_a_request_that_does_not_come_is_not_waited_for(
    babbling_server: Served, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is the rest of one that was answered, of which a byte comes now and then."""
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.3)
    monkeypatch.setattr(connections, "LOOK_SECONDS", 0.1)
    with opened(babbling_server, sent) as connection:
        connection.settimeout(0.1)
        end = time.monotonic() + 5
        while time.monotonic() < end:
            try:
                if not connection.recv(1000):
                    return
                connection.sendall(b"a")
            except TimeoutError:
                continue
            except OSError:
                return
    pytest.fail("the connection is still open")


@pytest.mark.parametrize("sent", [HEAD, HEAD + b'Content-Length: 100\r\n\r\n{"mess'])
def test_three_hundred_half_sent_requests_lock_nobody_out(babbling_server: Served, sent: bytes) -> None:
    with ExitStack() as stack:
        for _ in range(300):
            stack.enter_context(opened(babbling_server, sent))
        assert healthy(babbling_server) < 2
        begun = time.monotonic()
        answer = chat(babbling_server, "hello", max_tokens=3)
        assert answer.choices[0].message.content is not None
        assert time.monotonic() - begun < 5


def test_health_has_room_where_every_connection_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MOST_CONNECTIONS", 2)
    body = json.dumps({"messages": user("a"), "stream": True, "max_tokens": 300}).encode()
    request = HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body
    with served(seconds=0.02) as busy, opened(busy, request), opened(busy, request):
        busy.wait_for("running", 2)
        assert healthy(busy) < 2
        status, answer = ask(busy, "/v1/models", method="GET")
        assert (status, answer["error"]["type"]) == (503, "server_error")


# Prompts


def test_a_huge_prompt_is_refused_before_it_is_encoded(babbling_server: Served) -> None:
    """And nobody waits for it."""
    text = "hello " * 1_200_000
    with ThreadPoolExecutor() as pool:
        asked = [pool.submit(ask, babbling_server, "/v1/chat/completions", {"messages": user(text)}) for _ in range(3)]
        asked += [pool.submit(ask, babbling_server, "/v1/completions", {"prompt": text})]
        assert max(healthy(babbling_server) for _ in range(20)) < 2
        for each in asked:
            status, answer = each.result(timeout=30)
            assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
            assert "at least" in answer["error"]["message"]
    status, answer = ask(babbling_server, "/v1/chat/completions", {"messages": user(text * 2)})
    assert (status, answer["error"]["code"]) == (413, "request_too_large")


def test_of_a_long_text_the_beginning_says_that_it_is_too_long() -> None:
    """The length alone does not say so if the vocabulary has a very long token."""
    encoded: list[int] = []

    class Noted(Tokenizer):
        def encode(self, text: str, **options: Any) -> Encoding:
            encoded.append(len(text))
            return super().encode(text, **options)

    def prompts(longest: int) -> Prompts:
        made = Reference.from_str(BYTES.json.decode())
        made.add_tokens(["x" * longest])
        return Prompts(Noted(made.to_str().encode()), lambda messages, variables: RenderedChat(""), 60)

    with pytest.raises(ApiError, match="at least 13040 tokens, and a context of 60 "):
        prompts(20_000).of_text("ab " * 30_000)
    assert encoded == [720, 2880, 11520, 46080]
    # The core bounds the work for a text, so a text that almost holds a token of 20,000 letters is refused.
    assert len(prompts(2_000).of_text("x" * 2_000 * 50)) == 50


@pytest.mark.parametrize("part", ["render", "_encode"])
def test_others_are_answered_while_a_prompt_is_made(
    babbling_server: Served, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, begun = threading.Event(), threading.Event()
    real: Callable[..., Any] = getattr(babbling_server.server.prompts, part)

    def slow(*args: Any) -> Any:
        begun.set()
        assert goes_on.wait(20)
        return real(*args)

    monkeypatch.setattr(babbling_server.server.prompts, part, slow)
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(ask, babbling_server, "/v1/chat/completions", {"messages": user("hi"), "max_tokens": 2})
        assert begun.wait(10)
        assert healthy(babbling_server) < 2
        goes_on.set()
        assert asked.result(timeout=20)[1]["usage"]["prompt_tokens"] == len(chat_tokens("hi"))


# Templates


def test_a_template_that_loops_stops_nobody() -> None:
    template = TEMPLATE + "{% if endless %}" + LOOP + "{% endif %}"
    with speaker(lambda prompt: "Yes.", template) as one_server, ThreadPoolExecutor() as pool:
        body = {"messages": user("hi"), "chat_template_kwargs": {"endless": True}}
        asked = pool.submit(ask, one_server, "/v1/chat/completions", body)
        while not asked.done():
            assert healthy(one_server) < 0.8
        status, answer = asked.result()
        assert status == 400
        assert "takes too long" in answer["error"]["message"]
        answer = chat(one_server, "hi", max_tokens=20)
        assert answer.choices[0].message.content == "Yes."


ENDLESS = """
import sys
from served import BYTES, PrefixCache, Server, ServerSettings, SessionSlot, session, unknown_form
from hybridge.runtime.server import connections
connections.LAST_SECONDS = 1.0
def render(messages, variables):
    print("renders", flush=True)
    while True:
        pass
place = SessionSlot(session(), None)
cache = PrefixCache(place.session.model, 1 << 20)
server = Server([place], BYTES, render, cache, ServerSettings(name="babble"), unknown_form())
connections.listen(server.app(), "127.0.0.1", 0, lambda url: print(url, flush=True))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_server_whatever_it_does(number: signal.Signals) -> None:
    program = f"import sys; sys.path[:0] = {[*map(str, HELPERS)]!r}\n{ENDLESS}"
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process, ThreadPoolExecutor() as pool:
        try:
            one_server: Any = SimpleNamespace(url=process.stdout.readline().strip())
            asked = pool.submit(ask, one_server, "/v1/chat/completions", {"messages": user("hi")})
            assert process.stdout.readline() == "renders\n"
            process.send_signal(number)
            assert process.wait(15) != 0
        finally:
            process.kill()
        assert asked.exception(20) is not None
