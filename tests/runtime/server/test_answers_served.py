"""Calls of tools in the forms of families, through OpenAI's own client: complete, typed, and with the text around them."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from public_folders import CHAT_TEMPLATES
from scripted import TOOLS, speaker
from served import ask, chat, user


def tool(properties: dict[str, Any], **further: Any) -> list[Any]:
    parameters = {"type": "object", "properties": properties, "additionalProperties": False, **further}
    return [{"type": "function", "function": {"name": "f", "parameters": parameters}}]


def calls_of(message: Any) -> list[Any]:
    return [(each.function.name, json.loads(each.function.arguments)) for each in message.tool_calls or ()]


def test_an_answer_without_parallel_calls_ends_with_the_first() -> None:
    """Neither the second call nor text after the first is delivered, and the generation ends."""
    call = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
    with speaker(lambda prompt: f"Wait.\n{call}\n{call}" + " and so on" * 200) as server:
        for stream in (False, True):
            answer = chat(server, "a", tools=TOOLS, parallel_tool_calls=False, max_tokens=2200, stream=stream)
            if stream:
                deltas = [chunk.choices[0].delta for chunk in answer]
                assert len([call for each in deltas for call in each.tool_calls or ()]) == 1
                assert "".join(each.content or "" for each in deltas) == "Wait."
            else:
                (choice,) = answer.choices
                assert (calls_of(choice.message), choice.message.content) == ([("clock", {})], "Wait.")
                assert choice.finish_reason == "tool_calls"
                assert answer.usage.completion_tokens < 2000
        two = chat(server, "a", tools=TOOLS, max_tokens=200).choices[0].message
        assert len(two.tool_calls or ()) == 2
        body = {"input": "a", "parallel_tool_calls": False, "max_output_tokens": 2200,
                "tools": [{"type": "function", **each["function"]} for each in TOOLS]}  # fmt: skip
        status, response = ask(server, "/v1/responses", body)
        assert (status, [each["type"] for each in response["output"]]) == (200, ["message", "function_call"])
        assert response["parallel_tool_calls"] is False


def test_an_answer_without_parallel_calls_is_read_once() -> None:
    """The next turn continues from its tokens, with the reasoning that the client did not send back."""
    call = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
    prompts: list[str] = []

    def script(prompt: str) -> str:
        prompts.append(prompt)
        return "It is late." if "midnight" in prompt else f"<think>\nhm\n</think>\n\n{call}"

    with speaker(script) as server:
        first = chat(server, "when?", tools=TOOLS, parallel_tool_calls=False, max_tokens=200)
        (made,) = first.choices[0].message.tool_calls
        messages = [*user("when?"), {"role": "assistant", "tool_calls": [made.model_dump()]},
                    {"role": "tool", "tool_call_id": made.id, "content": "midnight"}]  # fmt: skip
        second = chat(server, messages, tools=TOOLS, parallel_tool_calls=False, max_tokens=200)
    assert second.choices[0].message.content == "It is late."
    assert "<think>\nhm\n</think>" in max(prompts, key=len)
    assert second.usage.prompt_tokens_details.cached_tokens >= first.usage.prompt_tokens + len(call)


def test_leading_system_messages_are_one_turn() -> None:
    """Qwen3.5's template refuses a system message that is not the first."""
    prompts: list[str] = []
    template = (CHAT_TEMPLATES / "qwen3_5.jinja").read_text()
    with speaker(lambda prompt: prompts.append(prompt) or "yes", template) as server:
        messages = [{"role": "system", "content": "Be brief."}, {"role": "developer", "content": "Be kind."}, *user("a")]
        assert chat(server, messages, max_tokens=20).choices[0].finish_reason == "stop"
        assert "Be brief.\n\nBe kind.<|im_end|>" in max(prompts, key=len)
        with pytest.raises(openai.BadRequestError, match="System message"):  # the template's own words
            chat(server, [*user("a"), {"role": "system", "content": "late"}, *user("b")], max_tokens=20)


@pytest.mark.parametrize("arguments", ["[1]", "5", "null", "{", '"{}"', "[" * 5000, '{"a": ' * 5000])
def test_arguments_in_the_history_that_are_no_object_are_named(arguments: str) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    item = {"type": "function_call", "call_id": "c", "name": "f", "arguments": arguments}
    with speaker(lambda prompt: "yes") as server:
        with pytest.raises(openai.BadRequestError, match=r"messages\.1\.tool_calls\.0\.function\.arguments: .*JSON object"):
            chat(server, [*user("a"), {"role": "assistant", "tool_calls": [call]}], max_tokens=20)
        status, error = ask(server, "/v1/responses", {"input": [item]})
        assert (status, error["error"]["param"]) == (400, "input.0.function_call.arguments")


def test_arguments_in_the_history_may_be_empty() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": ""}}
    with speaker(lambda prompt: "yes") as server:
        answer = chat(server, [*user("a"), {"role": "assistant", "tool_calls": [call]}, *user("b")], max_tokens=20)
    assert answer.choices[0].message.content == "yes"


@pytest.mark.parametrize("tools", [5, [], TOOLS])
def test_tools_are_no_variable_of_the_template(tools: Any) -> None:
    with speaker(lambda prompt: "yes") as server:
        body = {"messages": user("a"), "chat_template_kwargs": {"tools": tools}, "max_tokens": 9}
        status, answer = ask(server, "/v1/chat/completions", body)
    assert (status, answer["error"]["param"]) == (400, "chat_template_kwargs")
