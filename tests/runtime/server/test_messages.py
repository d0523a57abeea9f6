"""Anthropic's Messages API: the same answers as a chat's, in its own form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from anthropic import Anthropic, AuthenticationError, BadRequestError
from anthropic.types import ToolParam
from pydantic import BaseModel
from scripted import speaker
from served import Served, alone, ask, chat_tokens, served, user

TOOL: ToolParam = {"name": "weather", "input_schema": {"type": "object", "properties": {"place": {"type": "string"}}}}


@pytest.fixture
def claude(babbling_server: Served) -> Iterator[Anthropic]:
    """Return Anthropic's own client."""
    with Anthropic(base_url=babbling_server.url, api_key="none", max_retries=0) as client:
        yield client


def _blocks(content: Sequence[BaseModel]) -> list[dict[str, Any]]:
    """Return blocks without what differs in two answers that are alike."""
    return [block.model_dump(exclude={"id"}, exclude_none=True) for block in content]


def test_a_message_is_a_chats_answer(claude: Anthropic) -> None:
    said = alone(chat_tokens("hello"), 9)
    answer = claude.messages.create(model="babble", messages=user("hello"), max_tokens=9)
    assert _blocks(answer.content) == [{"type": "text", "text": said}]
    assert (answer.type, answer.role, answer.stop_reason) == ("message", "assistant", "max_tokens")
    assert answer.usage.output_tokens == 9
    with claude.messages.stream(model="babble", messages=user("hello"), max_tokens=9) as stream:
        assert "".join(stream.text_stream) == said
        streamed = stream.get_final_message()
    assert (_blocks(streamed.content), streamed.stop_reason) == (_blocks(answer.content), "max_tokens")
    usage = streamed.usage
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == len(chat_tokens("hello"))
    assert usage.cache_read_input_tokens


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

    with speaker(speak) as server, Anthropic(base_url=server.url, api_key="none", max_retries=0) as claude:
        asked: dict[str, Any] = {"model": "babble", "max_tokens": 120, "tools": [TOOL]}
        answer = claude.messages.create(messages=user("a"), **asked)
        text, call = answer.content
        assert text.type == "text"
        assert text.text == "yes"
        assert call.type == "tool_use"
        assert (call.name, call.input, answer.stop_reason) == ("weather", {"place": "Ulm"}, "tool_use")
        with claude.messages.stream(messages=user("a"), **asked) as stream:
            kinds = [(event.type, event.index) for event in stream if event.type == "content_block_stop"]
            streamed = stream.get_final_message().content
        assert kinds == [("content_block_stop", 0), ("content_block_stop", 1)]
        assert _blocks(streamed) == _blocks(answer.content)
        result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "sun"}]}
        turns = [*user("a"), {"role": "assistant", "content": answer.content}, {"role": "user", "content": [result]}]
        assert [getattr(each, "text", None) for each in claude.messages.create(messages=turns, **asked).content] == ["fine"]
        assert '"Ulm"' in seen[-1]


def test_tokens_are_counted(claude: Anthropic) -> None:
    counted = claude.messages.count_tokens(model="babble", messages=user("hello"))
    assert counted.input_tokens == len(chat_tokens("hello"))


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "document"),
        ({"messages": user("a"), "tool_choice": {"type": "tool"}}, "tool_choice.name"),
    ],
)
def test_errors_have_their_form(babbling_server: Served, body: dict[str, Any], says: str) -> None:
    status, answer = ask(babbling_server, "/v1/messages", {**body, "max_tokens": 3})
    assert (status, answer["type"], answer["error"]["type"]) == (400, "error", "invalid_request_error")
    assert says in answer["error"]["message"]


def test_the_key_may_be_anthropics_header() -> None:
    with served(key="secret") as server:
        for key in ("secret", "wrong"):
            with Anthropic(base_url=server.url, api_key=key, max_retries=0) as claude:
                if key == "secret":
                    assert claude.messages.create(model="babble", messages=user("a"), max_tokens=2).content
                else:
                    with pytest.raises(AuthenticationError, match="authentication_error"):
                        claude.messages.create(model="babble", messages=user("a"), max_tokens=2)


def test_an_error_is_one_of_anthropics(claude: Anthropic) -> None:
    with pytest.raises(BadRequestError, match="temperature is -1"):
        claude.messages.create(model="babble", messages=user("a"), max_tokens=2, temperature=-1)
