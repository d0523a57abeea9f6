"""The server from outside: requests that are refused, who may ask, and the command."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest
from served import Served, ask, client, served, talking_to, user
from store import demo_folder

from hybridge.errors import UsageError
from hybridge.runtime.cli.serve import api_key
from hybridge.runtime.server.connections import Limits

SCRIPT = Path(sys.executable).parent / "hybridge"


# What is refused

BAD: dict[str, tuple[Any, int, str]] = {
    "no JSON": ("{", 400, "JSON"),
    "a list": ([1], 400, "object"),
    "no messages": ({}, 400, "messages"),
    "an empty conversation": ({"messages": []}, 400, "messages"),
    "an image": (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        400,
        "takes no pictures",
    ),
    "a video": ({"messages": [{"role": "user", "content": [{"type": "video_url"}]}]}, 400, "'video_url'"),
    "another model": ({"model": "gpt-9", "messages": user("a")}, 404, "there is no model"),
    "too many answers": ({"messages": user("a"), "n": 1000}, 400, "n: Input should be less than or equal to 128"),
    "a penalty": (
        {"messages": user("a"), "presence_penalty": 3},
        400,
        "presence_penalty is 3.0, but must lie between -2 and 2",
    ),
    "a bias of no token": ({"messages": user("a"), "logit_bias": {"999": 1}}, 400, "the vocabulary has 260 tokens"),
    "a bias of a word": ({"messages": user("a"), "logit_bias": {"word": 1}}, 400, "logit_bias.word"),
    "a strong bias": ({"messages": user("a"), "logit_bias": {"9": 101}}, 400, "logit_bias of token 9 is 101"),
    "voices": ({"messages": user("a"), "modalities": ["audio"]}, 400, "modalities is not supported"),
    "calls to go on with": (
        {"messages": [*user("a"), {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}]},
        400,
        "give their results",
    ),
    "tools": ({"messages": user("a"), "tools": [{"type": "function"}]}, 400, "tools.0.function: Field required"),
    "a cold temperature": ({"messages": user("a"), "temperature": -1}, 400, "temperature"),
    "no tokens": ({"messages": user("a"), "max_tokens": 0}, 400, "max_tokens"),
    "an empty stop string": ({"messages": user("a"), "stop": ""}, 400, "stop"),
    "a long prompt": ({"messages": user("a" * 700)}, 400, "leaves no room"),
    "deep JSON": ("[" * 100_000, 400, "JSON"),
    "half a character": (b'{"messages": [{"role": "user", "content": "\xff"}]}', 400, "JSON"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_request_is_told_why(babbling_server: Served, what: str) -> None:
    body, status, says = BAD[what]
    got, answer = ask(babbling_server, "/v1/chat/completions", body)
    assert (got, set(answer["error"])) == (status, {"message", "type", "param", "code"}), answer
    assert says in answer["error"]["message"]
    if what in ("a penalty", "a strong bias"):
        assert answer["error"]["param"] == says.partition(" ")[0]


def test_wrong_tokens_and_an_empty_prompt_are_refused(babbling_server: Served) -> None:
    for prompt, says in (
        ([999], "outside the vocabulary"),
        ("", "empty"),
        ([], "prompt"),
        ([[]], "prompt"),
        ([1, "b"], "prompt"),
    ):
        status, answer = ask(babbling_server, "/v1/completions", {"prompt": prompt, "stream": True})
        assert status == 400
        assert says in answer["error"]["message"]


def test_paths_methods_kinds_and_sizes_are_checked() -> None:
    with served(limits=Limits(body=1000)) as one_server:
        assert ask(one_server, "/v1/nothing", method="GET")[0] == 404
        assert ask(one_server, "/v1/models", {})[0] == 405
        assert ask(one_server, "/v1/completions", "prompt=a", {"Content-Type": "application/x-www-form-urlencoded"})[0] == 415
        assert ask(one_server, "/v1/completions", {"prompt": "a" * 2000})[0] == 413
        assert ask(one_server, "/health", method="GET") == (200, {"status": "ok"})
        assert [each.id for each in client(one_server).models.list()] == ["babble"]
        assert client(one_server).models.retrieve("babble").owned_by == "hybridge"
        with socket.create_connection(urlsplit(one_server.url).netloc.split(":")) as raw:  # a body without a length
            chunk = b"3e8\r\n" + b"a" * 1000 + b"\r\n"
            head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            raw.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n" + chunk * 3)
            assert b" 413 " in raw.recv(1000)


def test_the_key_is_asked_for() -> None:
    with served(key="secret") as one_server:
        for wrong in ("", "secre", "secret2", "s€cret".encode().decode("latin-1")):
            status, answer = ask(one_server, "/v1/models", headers={"Authorization": f"Bearer {wrong}"}, method="GET")
            assert (status, answer["error"]["code"]) == (401, "invalid_api_key")
        with pytest.raises(openai.AuthenticationError):
            client(one_server).models.list()
        assert len(client(one_server, "secret").models.list().data) == 1
        assert ask(one_server, "/health", method="GET")[0] == 200
        assert ask(one_server, "/metrics", method="GET")[0] == 401


def test_a_web_page_gets_nothing_unless_it_is_named(babbling_server: Served) -> None:
    assert ask(babbling_server, "/v1/models", headers={"Host": "evil.example"}, method="GET")[0] == 403
    origin = {"Origin": "https://page.example", "Access-Control-Request-Method": "POST"}
    assert ask(babbling_server, "/v1/completions", headers=origin, method="OPTIONS")[0] == 405
    with served(origins=["https://page.example"]) as other:
        assert ask(other, "/v1/completions", headers=origin, method="OPTIONS")[0] == 200
        strange = {**origin, "Origin": "https://evil.example"}
        assert ask(other, "/v1/completions", headers=strange, method="OPTIONS")[0] == 400


def test_texts_are_not_logged(
    babbling_server: Served, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("it was told a secret")

    monkeypatch.setattr(babbling_server.server.prompts, "render", broken)
    status, answer = ask(babbling_server, "/v1/chat/completions", {"messages": user("a secret")})
    assert status == 500
    assert "RuntimeError" in caplog.text
    assert "secret" not in caplog.text + json.dumps(answer)


# The command


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe"], ids=["missing", "empty", "no text"])
def test_a_file_without_a_key_is_wrong_usage(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "key").write_bytes(content)
    with pytest.raises(UsageError, match="key"):
        api_key(tmp_path / "key")


def test_the_key_is_the_files_or_the_environments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "key").write_text("of the file\n")
    monkeypatch.setenv("HYBRIDGE_API_KEY", "of the environment")
    assert api_key(tmp_path / "key") == "of the file"
    assert api_key(None) == "of the environment"


@pytest.mark.slow
def test_the_command_serves_the_demo(tmp_path: Path) -> None:
    folder = demo_folder()
    process = subprocess.Popen(
        [SCRIPT, "serve", "hybridge-demo", "--port", "0", "--drafter", "--sessions", "2", "--cache-dir", tmp_path],
        cwd=folder, stderr=subprocess.PIPE, text=True, env=os.environ | {"HYBRIDGE_API_KEY": "k"},
    )  # fmt: skip
    assert process.stderr is not None
    try:
        url = ""
        while not (found := re.search(r"http://\S+/v1", url)):
            url = process.stderr.readline()
            assert url, "the server ended"
        talks = talking_to(found[0], "k")
        done = talks.completions.create(model="hybridge-demo", prompt="def main(", max_tokens=32)
        run = subprocess.run(
            [SCRIPT, "run", "hybridge-demo", "--prompt", "def main(", "--max-new-tokens", "32", "--json"],
            cwd=folder, check=True, capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert done.choices[0].text == json.loads(run.stdout)["text"]
        again = talks.chat.completions.create(model="hybridge-demo", messages=user("hello"), max_tokens=8)
        assert again.choices[0].message.content is not None
        with pytest.raises(openai.BadRequestError, match="messages is set by the conversation itself"):
            talks.chat.completions.create(
                model="hybridge-demo", messages=user("a"), extra_body={"chat_template_kwargs": {"messages": []}}
            )
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert process.returncode in (0, 143, -signal.SIGTERM)
    assert list(tmp_path.glob("*/*.state")), "checkpoints are there for the next server"


@pytest.mark.slow
def test_an_address_that_is_taken_is_told() -> None:
    folder = demo_folder()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = subprocess.run(
            [SCRIPT, "serve", "hybridge-demo", "--port", port],
            cwd=folder,
            check=False,
            capture_output=True,
            text=True,
            timeout=300,
        )
    assert done.returncode == 1
    assert "cannot be listened on" in done.stderr
    assert "Traceback" not in done.stderr
