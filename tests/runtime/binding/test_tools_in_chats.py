"""Tools in chats of the core: calls, their results, and what is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from ctypes import byref, c_int64
from pathlib import Path
from typing import Any

import pytest
import torch
from babbling import BYTES, END, TEMPLATE, fresh_session, options, told
from response_templates import TEMPLATES as RESPONSES
from torch import Tensor

from hybridge.errors import StateFileError, UsageError
from hybridge.runtime import Session
from hybridge.runtime.binding.chat import Chat
from hybridge.runtime.binding.interface import OnToken
from hybridge.runtime.binding.jinja import JinjaTemplate
from hybridge.runtime.binding.library import run
from hybridge.runtime.binding.programs import TextProgram
from hybridge.runtime.text.answers import AnswerFormat
from hybridge.runtime.text.chat_template import ChatTemplate
from hybridge.runtime.text.grammars import Grammars

WEATHER = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
CALLING = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}"
    "<tool_call>{{ c.function|tojson }}</tool_call>{% endfor %}</>\n{% endfor %}"
    "{{ tools[0].function.name }}\nassistant\n{{ '' }}"
)
ONE = '<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>'
TWO = f"Both. {ONE}" + '<tool_call>{"name": "weather", "arguments": {"city": "Rom\u00e4"}}</tool_call>'


def in_order(*answers: str) -> Callable[[tuple[int, ...]], Tensor]:
    """A model that says one answer after the other."""

    def say(text: tuple[int, ...]) -> Tensor:
        logits = torch.full((260,), -10.0)
        prompt, _, so_far = bytes(token for token in text if token < 256).rpartition(b"\nassistant\n")
        rest = answers[prompt.count(b"<assistant>")].encode()[len(so_far) :]
        logits[rest[0] if rest else END] = 10.0
        return logits

    return say


def calling(*answers: str, template: str = CALLING, tools: Sequence[Any] = (WEATHER,)) -> Chat:
    program = TextProgram(in_order(*(each.replace(".", "!") for each in answers)))
    return Chat.over(fresh_session(max_seq_len=2000, program=program), BYTES, JinjaTemplate(template), tools=tools)


def test_tools_are_called_and_answered() -> None:
    chat = calling(TWO, ONE, "Rain!")
    chat.send("Where does it rain?", lambda *_: None, options(200))
    asked, answered = chat.messages
    assert asked == {"role": "user", "content": "Where does it rain?"}
    assert answered["content"] == "Both!"
    assert [(each["function"]["name"], each["function"]["arguments"]) for each in answered["tool_calls"]] == [
        ("weather", {"city": "Oslo"}),
        ("weather", {"city": "Romä"}),
    ]
    chat.give_results(["wet <tool_call>", "dry"], lambda *_: None, options(200))
    results = chat.messages[2:4]
    assert [(each["role"], each["name"], each["content"]) for each in results] == [
        ("tool", "weather", "wet <tool_call>"),
        ("tool", "weather", "dry"),
    ]
    ids = [each["id"] for each in answered["tool_calls"]]
    assert [each["tool_call_id"] for each in results] == ids
    assert all(re.fullmatch("[a-z0-9]{9}", each) for each in ids)
    chat.give_results(["wet"], lambda *_: None, options(200))
    assert chat.messages[-1] == {"role": "assistant", "content": "Rain!"}
    assert len({call["id"] for each in chat.messages for call in each.get("tool_calls", ())}) == 3


def test_a_chat_follows_the_tokenizers_own_response_template(tmp_path: Path) -> None:
    config = {"chat_template": CALLING, "response_template": RESPONSES["actions"][2]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    program = TextProgram(in_order('[note]hm[/note]Both! [act][{"name": "weather", "args": {"city": "Oslo"}}][/act]'))
    session = fresh_session(max_seq_len=2000, program=program)
    chat = Chat.over(session, BYTES, JinjaTemplate(tmp_path), tools=[WEATHER])
    chat.send("Where?", lambda *_: None, options(200))
    answer = chat.messages[-1]
    assert (answer["content"], answer["reasoning_content"]) == ("Both!", "hm")
    assert [each["function"] for each in answer["tool_calls"]] == [{"name": "weather", "arguments": {"city": "Oslo"}}]


def test_a_conversation_with_calls_is_taken_back_whole() -> None:
    chat = calling("Hello", ONE, "Rain!")
    chat.send("Hi", lambda *_: None, options(200))
    before = chat.note
    for _ in range(2):
        chat.send("Where?", lambda *_: None, options(200))
        chat.give_results(["wet"], lambda *_: None, options(200))
        first = chat.messages
        assert told(chat.retry) == "Rain!"
        assert chat.messages == first
        chat.undo()
        assert chat.note == before


DISTURBED: dict[str, Callable[[dict[str, Any]], object]] = {
    "a result less": lambda note: note["messages"].pop(-2),
    "a call less": lambda note: note["messages"][1]["tool_calls"].pop(),
    "arguments that are a text": lambda note: note["messages"][1]["tool_calls"][0]["function"].update(arguments="{}"),
    "results at first": lambda note: note["messages"][0].update(role="tool", tool_call_id="a", name="b"),
}


@pytest.mark.parametrize("name", [None, *DISTURBED])
def test_calls_and_results_are_in_saved_chats(kernels_artifact: Path, tmp_path: Path, name: str | None) -> None:
    chat = calling(TWO, "Rain!")
    chat.send("Where?", lambda *_: None, options(200))
    chat.give_results(["wet", "dry"], lambda *_: None, options(200))
    note = json.loads(chat.note)
    note["tokens"] = [1] * len(note["tokens"])  # of another vocabulary
    if name is not None:
        DISTURBED[name](note)
    session = Session.load(kernels_artifact)
    session.prefill([1, 2, 3])
    session.save(tmp_path / "state", json.dumps(note))
    loaded = Chat.over(session, BYTES, JinjaTemplate(TEMPLATE))
    if name is None:
        loaded.load(tmp_path / "state")
        assert loaded.messages == chat.messages
    else:
        with pytest.raises(StateFileError):
            loaded.load(tmp_path / "state")


def test_what_does_not_fit_the_calls_is_refused_and_changes_nothing() -> None:
    chat = calling(ONE, "Rain!")
    with pytest.raises(UsageError, match="calls no tool"):
        chat.give_results(["wet"], lambda *_: None, options())
    chat.send("Where?", lambda *_: None, options(200))
    before = chat.note
    with pytest.raises(UsageError, match="calls 1 tools, and there are 2 results"):
        chat.give_results(["wet", "dry"], lambda *_: None, options())
    assert chat.note == before
    chat.give_results(["wet"], lambda *_: None, options())
    with pytest.raises(UsageError, match="calls no tool"):
        chat.give_results(["wet"], lambda *_: None, options())


STRICT = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}}, "required": ["city"],
            "additionalProperties": False,
        },
    },
}  # fmt: skip
CLOCK = {"type": "function", "function": {"name": "clock", "parameters": {"additionalProperties": False}}}
WRONG = 'Well: <tool_call>{"name": "whether", "arguments": {"city": 5}}</tool_call>'


def called(chat: Chat) -> list[tuple[str, Any]]:
    return [(each["function"]["name"], each["function"]["arguments"]) for each in chat.messages[-1].get("tool_calls", ())]


def test_a_call_fits_the_tools_schema_by_itself() -> None:
    chat = calling(WRONG, tools=[STRICT, CLOCK])
    chat.send("Where?", lambda *_: None, options(200))
    assert chat.messages[-1]["content"].startswith("Well:")
    ((name, arguments),) = called(chat)
    assert (name, arguments["city"] in ("Oslo", "Rome")) == ("weather", True)


def test_the_tools_that_are_called_are_the_callers_choice() -> None:
    """For each answer: any, none, at least one, or one of them."""
    chat = calling(ONE, "Rain!", ONE, ONE, tools=[STRICT, CLOCK])
    chat.send("Where?", lambda *_: None, options(200, tool_choice=b"none"))
    assert (chat.messages[-1]["content"], called(chat)) == (ONE, [])
    chat.send("Where?", lambda *_: None, options(300, tool_choice=b"required"))
    assert chat.messages[-1]["content"] == ""
    assert {name for name, _ in called(chat)} <= {"weather", "clock"}
    assert called(chat)
    chat.undo()
    chat.send("When?", lambda *_: None, options(300, tool_choice=b"clock"))
    assert {name for name, _ in called(chat)} == {"clock"}
    chat.retry(lambda *_: None, options(200, tool_choice=b"auto"))
    assert called(chat) == []


def test_a_choice_that_cannot_be_made_is_refused_and_changes_nothing() -> None:
    chat, without = calling(ONE, tools=[STRICT]), Chat.over(fresh_session(), BYTES, JinjaTemplate(TEMPLATE))
    grammar = Grammars(BYTES, 260, [END]).regex("a+")
    for one, given, why in (
        (chat, options(20, tool_choice=b"clock"), "no tool clock"),
        (chat, options(20, tool_choice=b"required", grammar=grammar.handle), "no other grammar"),
        (without, options(20, tool_choice=b"required"), "has no tools"),
    ):
        with pytest.raises(UsageError, match=why):
            one.send("Where?", lambda *_: None, given)
        assert one.messages == []
    odd = {"type": "function", "function": {"name": "odd", "parameters": {"properties": {"a": {"uniqueItems": True}}}}}
    with pytest.raises(UsageError, match=r"in the parameters of odd, .*uniqueItems"):
        calling(ONE, tools=[odd]).send("Where?", lambda *_: None, options(20))
    odd["function"]["strict"] = False  # type: ignore[index]
    calling("Hello", tools=[odd]).send("Where?", lambda *_: None, options(20))
    plain = fresh_session()
    with pytest.raises(UsageError, match="of a chat"):
        run("generate", plain.handle, (c_int64 * 1)(1), 1, byref(options(5, tool_choice=b"none")), OnToken(), None, None)


NO_TOOLS = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>\n{% endfor %}assistant\n{{ '' }}"
"""A template that reads no tools."""
GENERAL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'


@pytest.mark.parametrize(
    ("template", "teller"),
    [
        (NO_TOOLS, "system"),
        (NO_TOOLS.replace("messages %}", "messages if m.role != 'system' %}"), "user"),
        ("{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}" + NO_TOOLS, "user"),
        ("{# tools #}{{ '' if tools else '' }}" + NO_TOOLS, "system"),  # calls in a form that is not known
    ],
)
def test_a_template_without_tools_tells_them_in_words(template: str, teller: str) -> None:
    program = TextProgram(in_order(f"Wait!\n{GENERAL}\n{GENERAL}", GENERAL, "Rain!"))
    session = fresh_session(max_seq_len=2000, program=program)
    chat = Chat.over(session, BYTES, JinjaTemplate(template), tools=[WEATHER])
    chat.send("Where does it rain?", lambda *_: None, options(200))
    asked, answered = chat.messages
    assert asked == {"role": "user", "content": "Where does it rain?"}  # the chat keeps what was said
    assert answered["content"] == "Wait!"
    assert [each["function"]["arguments"] for each in answered["tool_calls"]] == [{"city": "Oslo"}] * 2
    chat.give_results(["wet", "dry"], lambda *_: None, options(200))
    chat.give_results(["wet"], lambda *_: None, options(200))
    assert chat.messages[-1] == {"role": "assistant", "content": "Rain!"}
    said = json.dumps(WEATHER["function"])
    read = BYTES.decode(session.tokens, skip_special_tokens=False)
    assert read.count(said) == 1
    assert read.startswith(f"<{teller}>You can call these functions, each described by a line of JSON:\n{said}\n\n")
    assert f"<assistant>Wait!\n{GENERAL}\n{GENERAL}</>" in read
    assert "<user><tool_response>\nwet\n</tool_response>\n<tool_response>\ndry\n</tool_response></>" in read


def test_tools_told_in_words_go_with_no_pictures() -> None:
    jinja, form = JinjaTemplate(NO_TOOLS), AnswerFormat.find(JinjaTemplate(NO_TOOLS), BYTES)
    told = ChatTemplate(jinja, {"tools": [WEATHER]}, form=form)
    parts = [{"type": "image"}, {"type": "text", "text": "Where?"}]
    with pytest.raises(UsageError, match="leave out the tools, or the pictures"):
        told.render([{"role": "user", "content": parts}])
    untold = ChatTemplate(JinjaTemplate("{{ messages | tojson }}"), form=form)
    messages = [
        {"role": "user", "content": parts, "name": "x"},
        {"role": "tool", "content": [1]},
        {"role": "user", "content": parts},
    ]
    assert json.loads(untold.render(messages).text) == [
        messages[0],
        {"role": "user", "content": [{"type": "text", "text": "<tool_response>\n[1]\n</tool_response>\n"}, *parts]},
    ]


def test_a_call_that_is_cut_off_is_none() -> None:
    chat = calling(ONE)
    chat.send("Where?", lambda *_: None, options(len(ONE) - 20))
    assert "tool_calls" not in chat.messages[-1]
    assert "weather" in chat.messages[-1]["content"]


@pytest.mark.parametrize(
    ("template", "tools", "why"), [(CALLING, [{"type": "function"}], "tools"), (CALLING, ["weather"], "tools")]
)
def test_tools_that_cannot_be_called_are_refused(template: str, tools: list[Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        Chat.over(fresh_session(), BYTES, JinjaTemplate(template), tools=tools)
