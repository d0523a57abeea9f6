"""Anthropic's Messages API: the same answers as a chat's, in its own form."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

import pytest
from scripted import speaker
from served import Served, alone, ask, chat_tokens, served, user

TOOL = {"name": "weather", "input_schema": {"type": "object", "properties": {"place": {"type": "string"}}}}


def events(server: Served, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the events of a stream, each under its own name."""
    data = json.dumps({**body, "stream": True}).encode()
    request = urllib.request.Request(f"{server.url}/v1/messages", data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        lines = answer.read().decode().split("\n\n")[:-1]
    found = []
    for event in lines:
        name, content = event.split("\n")
        found.append(json.loads(content.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def test_a_message_is_a_chats_answer(babbling_server: Served) -> None:
    body = {"model": "babble", "messages": user("hello"), "max_tokens": 9}
    status, answer = ask(babbling_server, "/v1/messages", body)
    assert status == 200
    said = alone(chat_tokens("hello"), 9)
    assert answer["content"] == [{"type": "text", "text": said}]
    assert (answer["type"], answer["role"], answer["stop_reason"]) == ("message", "assistant", "max_tokens")
    assert answer["usage"]["output_tokens"] == 9
    first, begun, *deltas, end, changed, last = events(babbling_server, body)
    assert (first["type"], begun["type"], end["type"], last["type"]) == (
        "message_start", "content_block_start", "content_block_stop", "message_stop",
    )  # fmt: skip
    assert "".join(each["delta"]["text"] for each in deltas) == said
    assert changed["delta"]["stop_reason"] == "max_tokens"
    usage = changed["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == len(chat_tokens("hello"))
    assert usage["cache_read_input_tokens"] > 0


def test_a_stop_sequence_is_named(babbling_server: Served) -> None:
    said = alone(chat_tokens("hello"), 9)
    body = {"messages": user("hello"), "max_tokens": 9, "stop_sequences": [said[4:6]]}
    _, answer = ask(babbling_server, "/v1/messages", body)
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", said[4:6])


def test_calls_and_their_results_are_blocks() -> None:
    seen = list[str]()

    def speak(prompt: str) -> str:
        seen.append(prompt)
        return (
            'yes<tool_call>\n{"name": "weather", "arguments": {"place": "Ulm"}}\n</tool_call>'
            if "sun" not in prompt
            else "fine"
        )

    with speaker(speak) as server:
        body: dict[str, Any] = {"messages": user("a"), "max_tokens": 120, "tools": [TOOL]}
        _, answer = ask(server, "/v1/messages", body)
        text, call = answer["content"]
        assert text == {"type": "text", "text": "yes"}
        assert (call["type"], call["name"], call["input"]) == ("tool_use", "weather", {"place": "Ulm"})
        assert answer["stop_reason"] == "tool_use"
        parts = [each["delta"] for each in events(server, body) if each["type"] == "content_block_delta"]
        assert json.loads("".join(each.get("partial_json", "") for each in parts)) == {"place": "Ulm"}
        result = {"type": "tool_result", "tool_use_id": call["id"], "content": [{"type": "text", "text": "sun"}]}
        body["messages"] = [
            *user("a"),
            {"role": "assistant", "content": answer["content"]},
            {"role": "user", "content": [result]},
        ]
        _, answer = ask(server, "/v1/messages", body)
        assert answer["content"] == [{"type": "text", "text": "fine"}]
        assert '"Ulm"' in seen[-1]


def test_tokens_are_counted(babbling_server: Served) -> None:
    body = {"messages": user("hello"), "model": "babble"}
    assert ask(babbling_server, "/v1/messages/count_tokens", body) == (200, {"input_tokens": len(chat_tokens("hello"))})


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "document"),
        ({"messages": user("a"), "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"messages": user("a"), "temperature": -1}, "temperature is -1"),
    ],
)
def test_errors_have_their_form(babbling_server: Served, body: dict[str, Any], says: str) -> None:
    status, answer = ask(babbling_server, "/v1/messages", {**body, "max_tokens": 3})
    assert (status, answer["type"], answer["error"]["type"]) == (400, "error", "invalid_request_error")
    assert says in answer["error"]["message"]


def test_the_key_may_be_anthropics_header() -> None:
    body = {"messages": user("a"), "max_tokens": 2}
    with served(key="secret") as server:
        assert ask(server, "/v1/messages", body, {"x-api-key": "secret"})[0] == 200
        status, answer = ask(server, "/v1/messages", body, {"x-api-key": "wrong"})
        assert (status, answer["error"]["type"]) == (401, "authentication_error")


def test_anthropics_own_package_reads_it(babbling_server: Served) -> None:
    anthropic = pytest.importorskip("anthropic")
    talk = anthropic.Anthropic(base_url=babbling_server.url, api_key="none")
    with talk.messages.stream(model="babble", max_tokens=9, messages=user("hello")) as stream:
        assert "".join(stream.text_stream) == alone(chat_tokens("hello"), 9)
