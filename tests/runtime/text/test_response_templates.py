"""Answers by a tokenizer's own response template or schema, against transformers' own parser."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from answer_program import Answer, AnswerProgram, cut
from hypothesis import given, settings
from response_templates import JSON_CALLS, SAID, SCHEMAS, TEMPLATES, THINKING, Template, template, written
from scripted import TOOLS
from served import BYTES
from transformers.utils.chat_parsing import parse_response

from hybridge.runtime.binding.jinja import JinjaTemplate
from hybridge.runtime.text.answers import AnswerFormat

WITH_CALLS = [name for name, (_, _, each) in TEMPLATES.items() if "tool_calls" in each["fields"]]
WITH_THOUGHTS = [name for name, (_, _, each) in TEMPLATES.items() if len(each["fields"]) == 3]
ALWAYS_THINK = ("ernie", "trl-nemotron3")
"""Templates whose answers begin in the reasoning."""
AS_ONE = ("cohere", "actions")
"""Templates with all calls in one list, whose parser keeps the last list."""


@pytest.fixture(scope="module")
def core() -> Iterator[AnswerProgram]:
    program = AnswerProgram()
    yield program
    program.close()


def reference(name: str, text: str, prompt: str) -> Answer:
    """The parts of an answer as transformers has them."""
    message = parse_response(text, TEMPLATES[name][2], prefix=prompt, tools=TOOLS)
    reasoning = next((message[each] for each in ("reasoning_content", "thinking") if message.get(each)), "")
    calls = message.get("tool_calls") or []
    functions = [each["function"] for each in (calls if isinstance(calls, list) else [calls])]
    return (message.get("content") or "").strip(), reasoning.strip(), [(each["name"], each["arguments"]) for each in functions]


def read(core: AnswerProgram, own: Template, pieces: list[str], prompt: str = "", **request: Any) -> Answer:
    return core.read("", pieces, prompt, config={"response_template": own}, **request)


def answer_of(name: str, *, thinks: bool, speaks: bool, calls: int) -> str:
    """An answer as the model of a template writes it."""
    thought, said = SAID.get(name, THINKING)
    text = (thought.format("hm, so") if thinks else "") + (said.format("Look here.") if speaks else "")
    return text + "".join([written(name), written(name, tool="clock")][: 1 if name in AS_ONE else calls] if calls else [])


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_has_the_form_of_its_marks(core: AnswerProgram, name: str) -> None:
    form, _, own = TEMPLATES[name]
    said = core.ask(config={"response_template": own}, template="<tool_call>")
    assert (said["form"], said["warning"]) == (form, "")


@settings(max_examples=5 * settings().max_examples)
@given(name=st.sampled_from(sorted(TEMPLATES)), thinks=st.booleans(), calls=st.integers(0, 2), data=st.data())
def test_answers_are_those_of_transformers(
    core: AnswerProgram, name: str, thinks: bool, calls: int, data: st.DataObject
) -> None:
    """However they are cut into pieces."""
    _, prompt, own = TEMPLATES[name]
    thinks = name in ALWAYS_THINK or (thinks and name in WITH_THOUGHTS)
    calls = calls if name in WITH_CALLS else 0
    text = answer_of(name, thinks=thinks, speaks=not calls or name not in AS_ONE, calls=calls)
    pieces = cut(text, data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    content, reasoning, found = read(core, own, pieces, prompt)
    assert (content.strip(), reasoning.strip(), found) == reference(name, text, prompt)


@pytest.mark.parametrize("name", WITH_CALLS)
def test_an_answer_that_is_cut_has_no_half_calls_and_no_half_marks(core: AnswerProgram, name: str) -> None:
    _, prompt, own = TEMPLATES[name]
    text = answer_of(name, thinks=name in ALWAYS_THINK, speaks=True, calls=1)
    whole = read(core, own, [text], prompt)[2]
    assert len(whole) == 1
    marks = [own["fields"]["tool_calls"].get("close") or []]
    for end in range(len(text)):
        content, _, calls = read(core, own, [text[:end]], prompt)
        assert calls in ([], whole)
        assert not calls or content.strip() == "Look here."
        assert not any(content.endswith(mark[:-1]) for each in marks for mark in ([each] if isinstance(each, str) else each))


def test_json_that_is_no_call_is_content(core: AnswerProgram) -> None:
    """The template's calls begin with JSON, and with no mark."""
    _, prompt, own = TEMPLATES["trl-llama3"]
    for text in ('{"name": "Bob", "age": 5}', '{"name": "weather", "parameters": {"pl', 'Hm: {"name": "x"} and more'):
        assert read(core, own, [text], prompt) == (text, "", [])


def test_a_prompt_begins_the_answer(core: AnswerProgram) -> None:
    """After the last anchor, which a question may not spell for another template."""
    for name in ("qwen3", "qwen3.5", "gemma4", "say"):
        _, anchor, own = TEMPLATES[name]
        thought = SAID.get(name, THINKING)[0].split("{}")[0]
        end = SAID.get(name, THINKING)[0].split("{}")[1].strip()
        before = f"{anchor}Earlier{thought}reply, <|im_start|>assistant\n{thought}. "
        assert read(core, own, [f"so{end}Yes."], before + anchor + thought) == ("Yes.", "so", [])
        assert read(core, own, ["Yes."], before + anchor) == ("Yes.", "", [])
        assert core.ask(config={"response_template": own}, prompt=before + anchor + thought)["reasoning_end"] == end


@pytest.mark.parametrize("name", ["smollm3", "gemma4", "inkling", "actions", "plain"])
def test_the_general_form_keeps_the_templates_reasoning(core: AnswerProgram, name: str) -> None:
    _, prompt, own = TEMPLATES[name]
    thought = SAID.get(name, THINKING)[0].format("hm") if name in WITH_THOUGHTS else ""
    text = thought + '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
    assert read(core, own, [text], prompt, general=True) == ("", "hm" if thought else "", [("clock", {})])


@pytest.mark.parametrize("name", SCHEMAS)
def test_an_older_schema_has_the_form_of_its_marks(core: AnswerProgram, name: str) -> None:
    form, schema = SCHEMAS[name]
    said = core.ask(config={"response_schema": schema}, template="", tokens=["<|tool_call|>"])
    assert said["form"] == (form or "granite")
    assert bool(said["warning"]) == (form is None)


CALLS = {**JSON_CALLS}
HOSTILE: dict[str, tuple[Any, str]] = {
    "a text": ("<think>", "it is no object"),
    "a list": ([1], "it is no object"),
    "no fields": ({"start_anchor": "a"}, "it has no fields"),
    "version 2": ({"version": 2, "fields": {"content": {}}}, "its version is not 1"),
    "an unknown key": ({"code": "x", "fields": {"content": {}}}, "it has an unknown key, \"code\""),
    "a number as a mark": (template("a", content={"open": 5}), "is not a string"),
    "a field that is a text": (template("a", content="x"), 'its field "content" is no object'),
    "two openings": (template("a", content={"open": "a", "open_pattern": "a"}), "has 'open' and 'open_pattern'"),
    "many fields": (template("a", **{f"x{i}": {} for i in range(10_000)}), "it has more than 16 fields"),
    "many marks": (template("a", content={"open": [f"<{i}>" for i in range(10_000)]}), "more than 16 marks"),
    "a huge mark": (template("a", content={"open": "<" * 1_000_000}), "a mark of more than 128 bytes"),
    "a huge pattern": (template("a", content={"open_pattern": "(a*)*" * 100_000}), "a pattern of more than 4096 bytes"),
    "an exploding pattern": (template("a", content={"open_pattern": "(?:(?:a+)+)+$"}), "does not end with a text"),
    "open groups": (template("a", content={"open_pattern": "(" * 4000}), "an open group"),
    "a backslash": (template("a", content={"open_pattern": "\\"}), "ends with a backslash"),
    "an open bracket": (template("a", content={"close_pattern": "[a"}), "an open bracket"),
    "a parenthesis": (template("a", content={"close_pattern": "a)"}), "a parenthesis too many"),
    "white space": (template("a", content={"close": "\n"}), "a mark of white space"),
    "numbers as content": (template("a", content={"open": "#", "content": "int"}), 'its field "content" is no text'),
    "lines as calls": (template("a", tool_calls={**CALLS, "content": "kv-lines"}), 'calls that are written as "kv-lines"'),
    "other keys": (template("a", tool_calls={**CALLS, "open": "<c>", "transform": {"name": "{content.fn}"}}),
                   "a 'transform' with other keys than those of calls"),
    "own delimiters": (template("a", tool_calls={**CALLS, "content_args": {"string_delims": [["'", "'"]]}}),
                       "its own delimiters"),
    "many texts": (template("a", **{f"x{i}": {"open_pattern": ".".join(f"{i}-{j}" for j in range(600)) + ".>"}
                                    for i in range(9)}), "too many texts"),
    "a name of many letters": (template("a", content={"\u00e9" * 10_000 + "\x1b": 1}), "unknown key, "),
    "deep": (template("a", content=json.loads('{"x":' * 100 + "1" + "}" * 100)), "unknown key"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_what_no_form_can_say_is_named_and_the_familys_form_is_taken(core: AnswerProgram, name: str) -> None:
    own, reason = HOSTILE[name]
    began = time.monotonic()
    said = core.ask(config={"response_template": own}, template="… <tool_call> …")
    assert time.monotonic() - began < 2
    assert said["form"] == "hermes"
    assert said["warning"].startswith("the tokenizer's response_template cannot be followed: ")
    assert reason in said["warning"]


JSONS = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=8)
    | st.sampled_from(["open", "<a>", r"(?P<name>\w+)", r"(?:a|b)?", "{content}", "json", "xml-inline", r"\s*<a>\s*", "(?=a)"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
FIELDS = st.dictionaries(
    st.sampled_from(["open", "open_pattern", "close_pattern", "content", "content_args", "transform"]), JSONS, max_size=5
)  # fmt: skip


@settings(max_examples=5 * settings().max_examples)
@given(
    fields=st.dictionaries(st.sampled_from(["thinking", "content", "tool_calls", "x"]), FIELDS | JSONS, max_size=4),
    anchor=JSONS,
)
def test_noise_as_a_template_ends_somehow(core: AnswerProgram, fields: Any, anchor: Any) -> None:
    """The program lives, and reads answers by it."""
    said = core.ask(config={"response_template": {"start_anchor": anchor, "fields": fields}}, pieces=["<a>b", "</a>"])
    assert said.get("events") is not None


def test_a_folders_own_template_is_followed_and_a_warning_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def found(own: Any) -> AnswerFormat:
        (tmp_path / "tokenizer_config.json").write_text(
            json.dumps({"chat_template": "{{ tools }}<tool_call>", "response_template": own})
        )
        return AnswerFormat.find(JinjaTemplate(tmp_path), BYTES)

    with caplog.at_level(logging.WARNING):
        own = found(TEMPLATES["actions"][2])
        assert (own.name, own.description["call_open"]) == ("own", ["[act]", "[do]"])
        answer = own.answer("Bot:", TOOLS)
        answer.feed("[note]hm[/note]Yes. " + written("actions"))
        answer.finish()
        assert (answer.reasoning, answer.content, answer.calls[0].name) == ("hm", "Yes.", "weather")
        assert not caplog.records
        assert found({"fields": []}).name == "hermes"
        assert "the tokenizer's response_template cannot be followed: it has no fields" in caplog.text
