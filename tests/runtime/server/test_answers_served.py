"""Calls of tools in the forms of families, through OpenAI's own client: complete, typed, and with the text around them."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from public_folders import CHAT_TEMPLATES
from scripted import TEMPLATE, TOOLS, speaker
from served import BYTES, ask, chat, user
from tokenizers import Tokenizer as Reference

from hybridge.runtime.binding.jinja import JinjaTemplate
from hybridge.runtime.binding.tokenizer import Tokenizer
from hybridge.runtime.text.answers import AnswerFormat

XML = TEMPLATE + "{# <tool_call> <function= #}"
"""A template whose model writes Qwen's XML."""


def tool(properties: dict[str, Any], **further: Any) -> list[Any]:
    parameters = {"type": "object", "properties": properties, "additionalProperties": False, **further}
    return [{"type": "function", "function": {"name": "f", "parameters": parameters}}]


def calls_of(message: Any) -> list[Any]:
    return [(each.function.name, json.loads(each.function.arguments)) for each in message.tool_calls or ()]


def xml(name: str, value: str) -> str:
    return f"<tool_call>\n<function=f>\n<parameter={name}>\n{value}\n</parameter>\n</function>\n</tool_call>"


DEFINITIONS = {
    "Unit": {"enum": ["c", "f"], "type": "string"},
    "Point": {"type": "object", "properties": {"x": {"type": "integer"}}},
}
TYPED: list[tuple[str, dict[str, Any], str, Any]] = [
    ("Optional[Literal]", {"anyOf": [{"enum": ["c", "f"], "type": "string"}, {"type": "null"}]}, "c", "c"),
    ("Optional[Enum]", {"anyOf": [{"$ref": "#/$defs/Unit"}, {"type": "null"}]}, "f", "f"),
    ("Literal | int", {"anyOf": [{"const": "auto", "type": "string"}, {"type": "integer"}]}, "auto", "auto"),
    ("a word or null", {"enum": ["edit", None]}, "edit", "edit"),
    ("null", {"enum": ["edit", None]}, "null", None),
    ("Optional[Model]", {"anyOf": [{"$ref": "#/$defs/Point"}, {"type": "null"}]}, '{"x": 1}', {"x": 1}),
    ("const", {"const": 3}, "3", 3),
    ("numbers", {"enum": [1, 2]}, "1", 1),
    ("text", {"type": "string"}, '"c"', '"c"'),
]


@pytest.mark.parametrize(("schema", "written", "value"), [each[1:] for each in TYPED], ids=[each[0] for each in TYPED])
def test_arguments_have_the_types_of_schemas_as_pydantic_writes_them(schema: Any, written: str, value: Any) -> None:
    with speaker(lambda prompt: xml("a", written), XML) as server:
        answer = chat(server, "a", tools=tool({"a": schema}, **{"$defs": DEFINITIONS}), max_tokens=200)
    assert calls_of(answer.choices[0].message) == [("f", {"a": value})]


REMOVE = tool({"folder": {"type": "string"}, "older_than_days": {"type": "integer"}})
CUT = {
    "qwen-xml": xml("folder", "/tmp").replace("\n</function>", "\n<parameter=older_than_days>\n30\n</parameter>\n</function>"),
    "hermes": '<tool_call>\n{"name": "f", "arguments": {"folder": "/tmp", "older_than_days": 30}}\n</tool_call>',
    "lfm2": '<|tool_call_start|>[f(folder="/tmp", older_than_days=30)]<|tool_call_end|>',
    "mistral": '[TOOL_CALLS]f[ARGS]{"folder": "/tmp", "older_than_days": 30}',
    "gemma4": '<|tool_call>call:f{folder:<|"|>/tmp<|"|>,older_than_days:30}<tool_call|>',
}


@pytest.mark.parametrize("name", CUT)
def test_a_call_that_is_cut_is_none(name: str) -> None:
    """By max_tokens, each of which is a byte here, or by a stop string."""
    text = CUT[name]
    whole = {"folder": "/tmp", "older_than_days": 30}
    with speaker(lambda prompt: text, TEMPLATE, form=AnswerFormat.named(name)) as server:
        for most in (text.index("/tmp"), text.index("/tmp") + 4, text.index("older"), text.index("30"), len(text)):
            choice = chat(server, "a", tools=REMOVE, max_tokens=most).choices[0]
            assert calls_of(choice.message) == ([("f", whole)] if most == len(text) else [])
        for stop in ("/tm", "older", "30"):
            choice = chat(server, "a", tools=REMOVE, max_tokens=300, stop=stop).choices[0]
            assert (calls_of(choice.message), choice.finish_reason) == ([], "stop")


def test_lfm2s_calls_are_known_by_its_vocabulary() -> None:
    """Though its template, which strips </think>, has the mark of models that only reason."""
    template = "{# content.split('</think>')[-1] #}" + TEMPLATE.replace("tool_call>", "call>")
    made = Reference.from_str(BYTES.json.decode())
    made.add_special_tokens(["<|tool_call_start|>", "<|tool_call_end|>"])
    form = AnswerFormat.find(JinjaTemplate(template), Tokenizer(made.to_str().encode()))
    text = '<|tool_call_start|>[weather(place="here")]<|tool_call_end|>'
    with speaker(lambda prompt: text, template, form=form) as server:
        assert calls_of(chat(server, "a", tools=TOOLS, max_tokens=200).choices[0].message) == [("weather", {"place": "here"})]


FAMILIES: list[tuple[str, str, str, str, list[Any]]] = [
    ("gemma4", '<|channel>thought\nhm\n<channel|>Wait.<|tool_call>call:f{a:[1,<|"|>}<|"|>],b:{c:true}}<tool_call|>',
     "Wait.", "hm", [("f", {"a": [1, "}"], "b": {"c": True}})]),
    ("kimi", "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"
     '{"a": 1}<|tool_call_end|><|tool_calls_section_end|>', "", "", [("f", {"a": 1})]),
    ("mistral", '[THINK]hm[/THINK]A[TOOL_CALLS]f[ARGS]{"a": "}"}[TOOL_CALLS]f[ARGS]{}', "A", "hm",
     [("f", {"a": "}"}), ("f", {})]),
    ("nemotron", '<TOOLCALL>[{"name": "f", "arguments": {"a": 1}}]</TOOLCALL>', "", "", [("f", {"a": 1})]),
    ("jamba", '<tool_calls>[{"name": "f", "arguments": {"a": 1}}]</tool_calls>', "", "", [("f", {"a": 1})]),
    ("deepseek", "<think>\nhm</think><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n"
     '{"a": 1}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>', "", "hm", [("f", {"a": 1})]),
    ("hermes", 'A \n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>\n\nB', "A \n\n\nB", "", [("f", {})]),
    ("harmony", "<|channel|>analysis<|message|>hm<|end|><|start|>assistant to=functions.f<|channel|>commentary json<|message|>"
     '{"a": 1}<|call|>', "", "hm", [("f", {"a": 1})]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "content", "reasoning", "calls"), FAMILIES, ids=[each[0] for each in FAMILIES])
def test_families_have_their_own_calls(name: str, text: str, content: str, reasoning: str, calls: list[Any]) -> None:
    with speaker(lambda prompt: text, form=AnswerFormat.named(name)) as server:
        message = chat(server, "a", tools=tool({}, additionalProperties=True), max_tokens=300).choices[0].message
    assert calls_of(message) == calls
    assert (message.content or "", getattr(message, "reasoning_content", "")) == (content, reasoning)


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
