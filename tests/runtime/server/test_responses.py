"""``/v1/responses`` by OpenAI's own client: the same answers as a chat's, in items and in events."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from pydantic import BaseModel, ConfigDict
from scripted import OPENING, TEMPLATE, TOOLS, speaker
from served import Served, ask, client, user

TOOL: Any = {"type": "function", **TOOLS[0]["function"]}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"place": "here"}}\n</tool_call>'


@pytest.fixture(scope="module")
def thinker() -> Iterator[Served]:
    """Thinks, then calls the weather, and once it is told the weather says so."""

    def script(prompt: str) -> str:
        return "It rains." if "<|im_start|>tool" in prompt else f"<think>\nLet me look\n</think>\n\nWait.\n{CALL}"

    with speaker(script) as running:
        yield running


def test_an_answer_is_that_of_a_chat(babbling_server: Served) -> None:
    said = client(babbling_server)
    chat = said.chat.completions.create(
        model="babble", messages=[{"role": "system", "content": "be brief"}, *user("hello")], max_tokens=40
    )
    answer = said.responses.create(model="babble", instructions="be brief", input="hello", max_output_tokens=40)
    assert answer.output_text == chat.choices[0].message.content
    assert answer.status == {"stop": "completed", "length": "incomplete"}[chat.choices[0].finish_reason]
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (chat.usage.prompt_tokens, chat.usage.completion_tokens)
    assert answer.usage.input_tokens_details.cached_tokens > 0, "the same prompt"
    turns: Any = [*user("hello"), {"role": "assistant", "content": answer.output_text}, *user("more")]
    again = said.responses.create(model="babble", input=turns, max_output_tokens=20)
    same = said.chat.completions.create(model="babble", messages=turns, max_tokens=20)
    assert again.output_text == same.choices[0].message.content


def test_a_stream_adds_up_to_the_answer(babbling_server: Served) -> None:
    whole = client(babbling_server).responses.create(model="babble", input="hello", max_output_tokens=30)
    with client(babbling_server).responses.stream(
        model="babble", input="hello", extra_body={"max_output_tokens": 30}
    ) as stream:
        events = list(stream)
        final = stream.get_final_response() if events[-1].type == "response.completed" else None
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == whole.output_text
    assert final is None or final.output_text == whole.output_text
    assert [event.sequence_number for event in events] == sorted(event.sequence_number for event in events)
    assert events[0].type == "response.created"
    assert events[-1].type == f"response.{whole.status}"


@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_and_calls_are_items(thinker: Served, stream: bool) -> None:
    said = client(thinker)
    items: list[Any] = user("how is the weather?")
    if stream:
        *_, last = said.responses.create(model="babble", input=items, tools=[TOOL], max_output_tokens=300, stream=True)
        answer = last.response
    else:
        answer = said.responses.create(model="babble", input=items, tools=[TOOL], max_output_tokens=300)
    assert [item.type for item in answer.output] == ["reasoning", "message", "function_call"]
    reasoning, _, call = answer.output
    assert reasoning.content[0].text == "Let me look"
    assert answer.output_text == "Wait."
    assert (call.name, json.loads(call.arguments)) == ("weather", {"place": "here"})
    items += [item.model_dump(exclude_none=True) for item in answer.output]
    items.append({"type": "function_call_output", "call_id": call.call_id, "output": "rain"})
    before = thinker.read
    after = said.responses.create(model="babble", input=items, tools=[TOOL], max_output_tokens=300)
    assert after.output_text == "It rains."
    assert thinker.read - before < 90, "the loop reads what is new"


class Number(BaseModel):
    model_config = ConfigDict(extra="forbid")
    n: int


def test_an_answer_fits_a_model_of_pydantics() -> None:
    template = TEMPLATE.replace(OPENING, OPENING + "<think>\n")
    with speaker(lambda prompt: '<think>\nSeven\n</think>\n\n{"n": 7}', template) as one_server:
        answer = client(one_server).responses.parse(model="babble", input="a", text_format=Number, max_output_tokens=200)
    assert answer.output_parsed == Number(n=7)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a stored conversation": ({"previous_response_id": "resp_1"}, "not stored"),
    "a chat's field": ({"max_tokens": 3}, "max_output_tokens"),
    "another tool": ({"tools": [{"type": "web_search"}]}, "tools"),
    "an image": ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "takes no pictures"),
    "a stored prompt": ({"prompt": {"id": "p"}}, "prompt is not supported"),
    "no input": ({"input": None}, "input"),
    "a tool that is not there": ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "no"}}, "tool"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_not_supported_is_said(thinker: Served, what: str) -> None:
    body, says = REFUSED[what]
    status, answer = ask(thinker, "/v1/responses", {"input": "a", **body})
    assert status == 400
    assert says in answer["error"]["message"]


def test_an_error_is_one_of_openais(babbling_server: Served) -> None:
    with pytest.raises(openai.BadRequestError, match="leaves no room"):
        client(babbling_server).responses.create(model="babble", input="a" * 700)
