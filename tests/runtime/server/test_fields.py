"""Each field that clients may send is used, refused, or named as ignored, in the response and in docs/serving.md."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Mapping
from typing import Any

import pytest
from anthropic.types import MessageCountTokensParams, message_create_params
from checkout import CHECKOUT
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_params
from openai.types.responses import response_create_params
from served import Served, ask, served, user

from hybridge.runtime.server.messages import MessagesRequest
from hybridge.runtime.server.requests import IGNORED, REFUSED, ChatRequest, CompletionRequest, GenerationRequest, parse
from hybridge.runtime.server.response_items import ResponsesRequest

KINDS: Mapping[str, tuple[type[GenerationRequest], set[str], dict[str, Any]]] = {
    "chat": (
        ChatRequest,
        {*chat_params.CompletionCreateParamsBase.__annotations__, "stream"},
        {"messages": user("a")},
    ),
    "completion": (
        CompletionRequest,
        {*completion_create_params.CompletionCreateParamsBase.__annotations__, "stream"},
        {"prompt": "a"},
    ),
    "response": (
        ResponsesRequest,
        {*response_create_params.ResponseCreateParamsBase.__annotations__, "stream"},
        {"input": "a"},
    ),
    "message": (
        MessagesRequest,
        {*message_create_params.MessageCreateParamsBase.__annotations__, "stream"},
        {"messages": user("a")},
    ),
    "count": (MessagesRequest, {*MessageCountTokensParams.__annotations__}, {"messages": user("a")}),
}


@pytest.mark.parametrize("name", KINDS)
def test_each_field_of_the_client_is_used_refused_or_ignored(name: str) -> None:
    kind, fields, body = KINDS[name]
    assert len(fields) > 8
    for field in fields - kind.model_fields.keys():
        assert (field in IGNORED) != (field in REFUSED), field
        if field in REFUSED:
            with pytest.raises(Exception, match=f"{field} is not supported"):
                parse(kind, _json({**body, field: "a value"}))
        else:
            assert parse(kind, _json({**body, field: "a value"}), strict=True).ignored == [field]


def test_the_document_has_all_of_them() -> None:
    text = (CHECKOUT / "docs" / "serving.md").read_text(encoding="utf-8")
    for field in {*IGNORED, *REFUSED, *(each for kind, _, _ in KINDS.values() for each in kind.model_fields)}:
        assert f"`{field}`" in text, field


def test_the_answer_names_what_was_ignored(babbling_server: Served) -> None:
    body = _json({"messages": user("a"), "max_tokens": 2, "store": True, "nonsense": 1, "user": None})
    request = urllib.request.Request(f"{babbling_server.url}/v1/chat/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        assert answer.headers["x-hybridge-ignored"] == "nonsense, store"


def test_a_strict_server_refuses_unknown_fields() -> None:
    with served(strict=True) as server:
        status, answer = ask(server, "/v1/chat/completions", {"messages": user("a"), "temprature": 1})
        assert (status, answer["error"]["code"]) == (400, "unknown_parameter")
        assert "no field temprature" in answer["error"]["message"]


def _json(body: object) -> bytes:
    return json.dumps(body).encode()
