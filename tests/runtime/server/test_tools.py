"""Calls of tools and reasoning: out of what models write, and through OpenAI's own client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from scripted import OPENING, TEMPLATE, TOOLS, TURNS, speaker
from served import BYTES, Served, ask, chat, client, user

from hybridge.runtime import GenerationStats, Sampling
from hybridge.runtime.server.app import Question
from hybridge.runtime.server.prompts import Prompt
from hybridge.runtime.server.requests import GenerationRequest
from hybridge.runtime.server.worker import Finished, Inbox, Job
from hybridge.runtime.text.answers import AnswerFormat
from hybridge.runtime.text.generate import TextPiece

# Through the server


def called(place: str) -> str:
    return f'<tool_call>\n{{"name": "weather", "arguments": {{"place": "{place}"}}}}\n</tool_call>'


def agent(prompt: str) -> str:
    """Thinks, calls the weather of three places one after the other, and then says so."""
    done = prompt.rpartition("<|im_start|>user")[2].count("<|im_start|>tool")
    return f"<think>\ncall {done}\n</think>\n\n" + (called(("here", "there", "nowhere")[done]) if done < 3 else "It rains.")


def test_a_loop_of_tool_calls_reads_nothing_again() -> None:
    with speaker(agent) as calling_server:
        messages = user("how is the weather?")
        places, before = [], 0
        for turn in range(4):
            answer = chat(calling_server, messages, tools=TOOLS, max_tokens=200)
            message, usage = answer.choices[0].message, answer.usage
            new = len(BYTES.encode(f"<|im_end|>\n<|im_start|>tool\nrain {turn}<|im_end|>\n{OPENING}").ids)
            if turn:
                assert usage.prompt_tokens - (usage.prompt_tokens_details.cached_tokens or 0) <= new + 1
                assert (usage.prompt_tokens_details.cached_tokens or 0) >= before
            before = usage.prompt_tokens
            assert message.reasoning_content == f"call {turn}"
            if not message.tool_calls:
                break
            assert answer.choices[0].finish_reason == "tool_calls"
            assert message.content is None
            places.append(json.loads(message.tool_calls[0].function.arguments)["place"])
            messages += [
                {"role": "assistant", "tool_calls": [each.model_dump() for each in message.tool_calls]},  # no reasoning
                {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": f"rain {turn}"},
            ]
        assert places == ["here", "there", "nowhere"]
        assert message.content == "It rains."
        # The same conversation, read by a model that has seen none of it, has the same prompt.
        assert calling_server.read == usage.prompt_tokens + usage.completion_tokens - 1


@pytest.fixture(scope="module")
def calling_server() -> Iterator[Served]:
    with speaker(lambda prompt: "One.\n" + called("here") + "\n" + called("there")) as running:
        yield running


def test_calls_are_streamed(calling_server: Served) -> None:
    chunks = list(chat(calling_server, "a", tools=TOOLS, stream=True, max_tokens=300))
    with client(calling_server).chat.completions.stream(
        model="babble", messages=user("a"), tools=TOOLS, max_tokens=300
    ) as stream:
        message = stream.get_final_completion().choices[0].message
    calls = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ()]
    assert [call.index for call in calls] == [0, 1]
    assert [json.loads(call.function.arguments)["place"] for call in calls if call.function] == ["here", "there"]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "One." == message.content
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
    assert [call.function.name for call in message.tool_calls or ()] == ["weather", "weather"]


@pytest.mark.parametrize("options", [{}, {"tools": TOOLS, "tool_choice": "none"}])
def test_without_tools_a_call_is_text(calling_server: Served, options: dict[str, Any]) -> None:
    answer = chat(calling_server, "a", max_tokens=300, **options)
    assert answer.choices[0].message.tool_calls is None
    assert "<tool_call>" in (answer.choices[0].message.content or "")
    assert answer.choices[0].finish_reason == "stop"


def test_an_answer_that_is_cut_short_says_so(calling_server: Served) -> None:
    answer = chat(calling_server, "a", tools=TOOLS, max_tokens=40)
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].message.tool_calls is None


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
@pytest.mark.parametrize("prompt", ["", "<think>\n"])
def test_a_call_that_is_asked_for_comes_and_fits(choice: Any, prompt: str) -> None:
    template = TEMPLATE.replace(OPENING, OPENING + prompt) if prompt else TEMPLATE
    said = ("<think>\nhm <tool_call>\n</think>\n\n" if prompt else "") + "I would rather talk"
    with speaker(lambda before: said, template) as calling_server:
        for stream in (False, True):
            answer = chat(
                calling_server, "a", tools=TOOLS, tool_choice=choice, max_tokens=400, stream=stream, temperature=0.5, seed=1,
                extra_body={"top_k": 0}, parallel_tool_calls=False,
            )  # fmt: skip
            if stream:
                (call,) = [each for chunk in answer for each in chunk.choices[0].delta.tool_calls or ()]
            else:
                assert answer.choices[0].finish_reason == "tool_calls"
                assert getattr(answer.choices[0].message, "reasoning_content", None) == ("hm <tool_call>" if prompt else None)
                (call,) = answer.choices[0].message.tool_calls
            arguments = json.loads(call.function.arguments)
            assert call.function.name in ("weather", "clock") if choice == "required" else call.function.name == "weather"
            if call.function.name == "weather":
                assert set(arguments) <= {"place", "days"}
                assert isinstance(arguments["place"], str)


OPENINGS = {"harmony": "<|start|>assistant", "granite": "<|start_of_role|>assistant<|end_of_role|>"}


@pytest.mark.parametrize("name", ["harmony", "qwen-xml", "lfm2", "granite", "hermes", "thinking", "gemma4", "kimi", "mistral"])
def test_after_the_lead_content_is_content(name: str) -> None:
    """Also if the prompt has begun to reason."""
    form, opening = AnswerFormat.named(name), OPENINGS.get(name, OPENING)
    for begun in [opening, *(opening + mark for mark in form.description["reasoning_open"])]:
        lead = form.lead(begun)
        answer = form.answer(begun + lead, [])
        assert [*answer.feed('{"a": 1}'), *answer.finish()]
        assert (answer.content, answer.reasoning) == ('{"a": 1}', "")


@pytest.mark.parametrize(
    "options",
    [
        {"tools": [{"type": "function", "function": {"name": "two words"}}]},
        {"tools": [{"type": "code", "function": {"name": "a"}}]},
        {"tools": "weather"},
        {"tools": TOOLS, "tool_choice": "whatever"},
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "nothing"}}},
        {"tool_choice": "required"},
    ],
)
def test_wrong_tools_are_refused(calling_server: Served, options: dict[str, Any]) -> None:
    with pytest.raises(openai.BadRequestError, match="tool"):
        chat(calling_server, "a", **options)


STRICT = (
    """
{%- for message in messages %}
{%- if (message.role == "user") != (loop.index0 % 2 == 0) %}{{ raise_exception("roles must alternate") }}{% endif %}
{%- endfor %}"""
    + TURNS
)
SILENT = TURNS.replace("messages %}", "messages if message.role != 'system' %}")
THINKS = TURNS.replace(OPENING, OPENING + "<think>\n") + "{# </think> #}"


def told(prompt: str) -> bool:
    return all(json.dumps(tool["function"]) in prompt for tool in TOOLS)


def without_a_form(prompt: str) -> str:
    """Calls the weather, and says what came of it; asks for tools where there are none."""
    if not told(prompt):
        return "What can I do?"
    if "<tool_response>\nrain\n</tool_response>\n<tool_response>\nwind\n</tool_response>" in prompt:
        return "It rains."
    return "Wait.\n" + called("here").replace("weather", "whether") + "\n" + called("there")


@pytest.mark.parametrize("template", [TURNS, STRICT, SILENT, THINKS])
def test_a_template_without_tools_gets_a_general_form_of_them(template: str) -> None:
    """In the system turn, or the user's where there is none; calls that would not fit do, and results come back as text."""
    think = "<think>\nhm\n</think>\n\n" if template == THINKS else ""  # which the template begins, and the model goes on with
    with speaker(lambda prompt: think + without_a_form(prompt), template) as calling_server:
        messages = user("how is the weather?")
        answer = chat(calling_server, messages, tools=TOOLS, max_tokens=300)
        message = answer.choices[0].message
        assert (message.content, answer.choices[0].finish_reason) == ("Wait.", "tool_calls")
        assert getattr(message, "reasoning_content", None) == ("hm" if template == THINKS else None)
        calls = message.tool_calls or []
        assert [call.function.name for call in calls] == ["weather", "weather"]
        assert [json.loads(call.function.arguments)["place"] for call in calls] == ["here", "there"]
        messages.append({"role": "assistant", "content": "Wait.", "tool_calls": [call.model_dump() for call in calls]})
        messages += [
            {"role": "tool", "tool_call_id": call.id, "content": said}
            for call, said in zip(calls, ("rain", "wind"), strict=True)
        ]
        answer = chat(calling_server, messages, tools=TOOLS, max_tokens=300)
        assert answer.choices[0].message.content == "It rains."
        none = chat(calling_server, messages[:1], max_tokens=60)
        assert none.choices[0].message.content == "What can I do?"


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_may_be_left_to_the_reasoning(stream: bool) -> None:
    with speaker(lambda prompt: "<think>\nto STOP or not\n</think>\n\nI STOP here") as server:
        body = {"messages": user("a"), "stop": "STOP", "stop_after_reasoning": True, "max_tokens": 200}
        message = {"content": "", "reasoning_content": ""}
        if stream:
            for chunk in chat(server, "a", stop="STOP", stream=True, extra_body={"stop_after_reasoning": True}):
                for name in message:
                    message[name] += getattr(chunk.choices[0].delta, name, None) or ""
        else:
            message = ask(server, "/v1/chat/completions", body)[1]["choices"][0]["message"]
        assert (message["reasoning_content"], message["content"]) == ("to STOP or not", "I ")
        body = {"messages": user("a"), "stop_sequences": ["STOP"], "stop_after_reasoning": True, "max_tokens": 200}
        answer = ask(server, "/v1/messages", body)[1]
        assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", "STOP")


def test_a_general_call_can_be_asked_for_behind_a_system_turn() -> None:
    prompts: list[str] = []
    with speaker(lambda prompt: prompts.append(prompt) or "no", TURNS) as calling_server:
        answer = chat(
            calling_server, [{"role": "system", "content": "Be brief."}, *user("when?")], tools=TOOLS, max_tokens=400,
            tool_choice={"type": "function", "function": {"name": "weather"}}, temperature=0.5, seed=1, extra_body={"top_k": 0},
            parallel_tool_calls=False,
        )  # fmt: skip
    (call,) = answer.choices[0].message.tool_calls or ()
    assert call.function.name == "weather"
    assert isinstance(json.loads(call.function.arguments)["place"], str)
    assert "<|im_start|>system\nBe brief.\n\nYou can call these functions" in max(prompts, key=len)


def test_pieces_that_come_with_the_end_are_read_before_it(calling_server: Served) -> None:
    """The computing thread may be done before anybody has listened."""
    job = Job(prompt=[1], tokenizer=BYTES, sampling=Sampling(), max_new_tokens=1, emit=print, deadline=0)
    question = Question(
        asked=GenerationRequest(), prompt=Prompt("", [1]), chat=False, sampling=Sampling(),
        answer=AnswerFormat.named("gigachat").answer("", TOOLS),
    )  # fmt: skip

    async def listen() -> list[Any]:
        inbox = Inbox()
        for text in ('<|function_call|>{"name": "clock", "argu', 'ments": {}}'):
            inbox.put(TextPiece(text, [], []))
        inbox.put(Finished("stop", 0, GenerationStats()))
        return [each async for each in calling_server.server.stream_events(question, job, inbox)]

    said, _ = asyncio.run(listen())
    assert [delta.call.name for delta in said.deltas if delta.call] == ["clock"]
