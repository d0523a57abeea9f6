"""Conversations that are longer than the server's context: refused by OpenAI's code, or without their oldest messages."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from babbling import TEMPLATE, rendered
from served import BYTES, Served, chat, client

from hybridge.runtime.server.prompts import Prompts
from hybridge.runtime.server.requests import ChatMessage

AUTO = {"extra_body": {"truncation": "auto"}}


def conversation(turns: int, words: int = 10) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = [{"role": "system", "content": "Be brief."}]
    for i in range(turns):
        told += [{"role": "user", "content": f"{i} " + "w" * words}, {"role": "assistant", "content": "a" * words}]
    return [*told, {"role": "user", "content": "and now?"}]


def test_a_long_conversation_is_refused_unless_it_may_be_shortened(babbling_server: Served) -> None:
    long = conversation(9, 40)
    with pytest.raises(openai.BadRequestError, match="truncation") as refused:
        chat(babbling_server, long, max_tokens=20)
    assert refused.value.code == "context_length_exceeded"
    kept = chat(babbling_server, long, max_tokens=20, **AUTO)
    assert 150 < kept.usage.prompt_tokens <= 300, "down to half of the context of 600"
    response = client(babbling_server).responses.create(model="babble", input=long, max_output_tokens=20, truncation="auto")
    assert response.usage is not None
    assert response.usage.input_tokens == kept.usage.prompt_tokens
    short = conversation(2)
    assert chat(babbling_server, short, max_tokens=20, **AUTO).choices == chat(babbling_server, short, max_tokens=20).choices


def test_the_next_request_is_shortened_at_the_same_place(babbling_server: Served) -> None:
    told = conversation(9, 40)
    first = chat(babbling_server, told, max_tokens=20, **AUTO)
    told += [{"role": "assistant", "content": first.choices[0].message.content}, {"role": "user", "content": "go on"}]
    second = chat(babbling_server, told, max_tokens=20, **AUTO)
    assert second.usage.prompt_tokens > first.usage.prompt_tokens
    assert second.usage.prompt_tokens_details.cached_tokens >= first.usage.prompt_tokens


def test_a_call_is_left_out_with_its_result() -> None:
    prompts = Prompts(BYTES, lambda messages, variables: rendered(TEMPLATE, messages), 200)
    told = [ChatMessage(role="user", content="w" * 90)]
    told += [ChatMessage(role="assistant", content="call"), ChatMessage(role="tool", content="r" * 40)]
    told += [ChatMessage(role="assistant", content="so"), ChatMessage(role="user", content="x" * 20)]
    assert [each["role"] for each in prompts.of_shortened_chat(told, {}, (), 50).messages] == ["user"]


def test_the_last_message_is_never_left_out(babbling_server: Served) -> None:
    with pytest.raises(openai.BadRequestError, match="leaves no room") as refused:
        chat(babbling_server, [*conversation(2)[:-1], {"role": "user", "content": "x" * 700}], max_tokens=20, **AUTO)
    assert refused.value.code == "context_length_exceeded"
