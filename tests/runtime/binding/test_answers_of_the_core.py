"""Answers through the C functions: forms, events as JSON, and arguments that cannot be."""

from __future__ import annotations

import json
from ctypes import byref, c_size_t, c_void_p, string_at
from typing import Any

import pytest
from answer_cases import ANSWERS
from scripted import TOOLS
from served import BYTES

from hybridge.errors import UsageError
from hybridge.runtime.binding.interface import AnswerFormHandle, AnswerParserHandle, TemplateHandle
from hybridge.runtime.binding.jinja import JinjaTemplate
from hybridge.runtime.binding.library import copied_text, run

CHATML = b"<|im_start|>assistant\n"
CALL = b'A\0b<tool_call>\n{"name": "f", "arguments": {"a": "\xff\\u0000"}}\n</tool_call>'


def named(name: str) -> AnswerFormHandle:
    form = AnswerFormHandle()
    run("answer_form_named", name.encode(), len(name.encode()), byref(form))
    return form


def begun(form: AnswerFormHandle, prompt: bytes = CHATML, tools: Any = TOOLS) -> AnswerParserHandle:
    answer, offered = AnswerParserHandle(), b"" if tools is None else json.dumps(tools).encode()
    run("answer_open", form, prompt, len(prompt), offered, len(offered), byref(answer))
    return answer


def events(answer: AnswerParserHandle, *pieces: bytes) -> list[Any]:
    found, said, size = [], c_void_p(), c_size_t()
    for piece in pieces:
        run("answer_push", answer, piece, len(piece), byref(said), byref(size))
        found += json.loads(string_at(said.value or 0, size.value))
    run("answer_finish", answer, byref(said), byref(size))
    return [*found, *json.loads(string_at(said.value or 0, size.value))]


def test_calls_text_and_reasoning_are_events() -> None:
    answer = begun(named("hermes"), CHATML + b"<think>\n")
    assert copied_text("answer_reasoning_end", answer) == "</think>"
    assert events(answer, b"hm\n</thi", b"nk>\n", CALL) == [
        ["reasoning", "hm", ""], ["content", "A\0b", ""], ["call", "f", '{"a": "\ufffd\\u0000"}']
    ]  # fmt: skip
    assert [kind for kind, *_ in events(begun(named("hermes"), tools=None), CALL)] == ["content"]


def test_a_form_is_found_and_described() -> None:
    def described(form: AnswerFormHandle) -> Any:
        return json.loads(copied_text("answer_form_describe", form))

    def found(template: str) -> Any:
        form, read = AnswerFormHandle(), JinjaTemplate(template)
        run("answer_form_find", BYTES.handle, read.handle, byref(form))
        return described(form)

    assert (found("")["name"], found("")["call_open"], found("")["reasoning_open"]) == ("general", ["<tool_call>"], [])
    assert found("{{ tools }}<tool_call>\n<function=")["name"] == "qwen-xml"
    without = found("<tool_call>\n<function=<think>")  # a template that reads no tools
    assert (without["name"], without["reasoning_close"]) == ("general", ["</think>"])
    with pytest.raises(UsageError):
        run("answer_form_find", BYTES.handle, TemplateHandle(), byref(AnswerFormHandle()))
    for name in ANSWERS:
        form = described(named(name))
        assert form["name"] == name
        for mark in (*form["call_open"], *form["reasoning_open"], *form["reasoning_close"]):
            assert mark in form["looked_for"]


def test_what_cannot_be_is_refused() -> None:
    form = named("hermes")
    with pytest.raises(UsageError, match="no form of answers called nothing"):
        named("nothing")
    for tools in (b"{", b'{"a": 1}', b"[1]"):
        with pytest.raises(UsageError):
            run("answer_open", form, b"", 0, tools, len(tools), byref(AnswerParserHandle()))
    answer = begun(form)
    run("answer_form_close", form)
    assert events(answer, b"still open") == [["content", "still open", ""]]
    run("answer_close", answer)
    for handle in (answer, AnswerParserHandle(form.id)):
        with pytest.raises(UsageError):
            run("answer_close", handle)
    with pytest.raises(UsageError):
        run("answer_push", answer, b"", 0, byref(c_void_p()), byref(c_size_t()))
