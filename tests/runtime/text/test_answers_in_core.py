"""Answers in the core: reasoning, content and calls of tools, however they are cut, by the form of the model's family."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import hypothesis.strategies as st
import pytest
from answer_cases import ANSWERS
from answer_program import CHATML, Answer, AnswerProgram, cut
from hypothesis import given, settings
from scripted import TOOLS

from hybridge.runtime.text.answers import AnswerFormat

CASES = [(name, *case) for name, cases in ANSWERS.items() for case in cases]


@pytest.fixture(scope="module")
def core() -> Iterator[AnswerProgram]:
    program = AnswerProgram()
    yield program
    program.close()


def tool(**properties: Any) -> list[Any]:
    return [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": properties}}}]


@given(case=st.sampled_from(CASES), data=st.data())
@settings(max_examples=3 * settings().max_examples)
def test_answers_are_those_of_python(core: AnswerProgram, case: Any, data: st.DataObject) -> None:
    name, prompt, text, content, reasoning, calls = case
    pieces = cut(text, data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    assert core.read(name, pieces, f"x{prompt}") == (content, reasoning, calls)


@given(case=st.sampled_from([case for case in CASES if case[3] and not case[5]]), data=st.data())
def test_a_stop_string_may_end_the_content_alone(case: Any, data: st.DataObject) -> None:
    name, prompt, text, content, reasoning, _ = case  # what would come after the content does not
    begin = data.draw(st.integers(0, len(content) - 1))
    stop = content[begin : begin + data.draw(st.integers(1, 6))]
    answer = AnswerFormat.named(name).answer(f"x{prompt}", TOOLS)
    answer.stop_at([stop, "never"])
    for piece in cut(text, data.draw(st.lists(st.integers(0, len(text)), max_size=8))):
        answer.feed(piece)
    answer.finish()
    assert answer.content == content[: content.find(stop)]
    assert reasoning.startswith(answer.reasoning)
    assert answer.has_stopped
    assert answer.is_complete


def test_a_form_is_known_by_its_template_and_its_tokens(core: AnswerProgram) -> None:
    def name(chat_template: str, *tokens: str) -> Any:
        return core.ask(form=None, template=chat_template, tokens=tokens)["form"]

    assert name("{{ messages }}") == ""
    assert name("… <tool_call> …") == "hermes"
    assert name("… <tool_call>\n<function= …", "<|tool_call|>") == "qwen-xml"
    assert name("List of tools: [", "<|tool_call_start|>") == "lfm2"
    assert name("<tool_call>", "<|tool_call|>") == "hermes"
    assert name("", "<|tool_call|>") == "granite"
    assert name("<|channel|>analysis") == "harmony"
    assert name("<think></think>") == "thinking"
    assert name("content.split('</think>')", "<|tool_call_start|>", "</think>") == "lfm2"


PYDANTIC = {
    "optional": {"anyOf": [{"enum": ["c", "f"], "type": "string"}, {"type": "null"}], "default": None},
    "by_reference": {"anyOf": [{"$ref": "#/$defs/Unit"}, {"type": "null"}]},
    "mixed": {"anyOf": [{"const": "auto", "type": "string"}, {"type": "integer"}]}, "named": {"enum": ["edit", None]},
    "model": {"anyOf": [{"$ref": "#/$defs/Point"}, {"type": "null"}]}, "three": {"const": 3}, "numbers": {"enum": [1, 2]},
    "text": {"type": "string"}, "any": {}, "flag": {"type": "boolean"}, "count": {"type": "integer"},
    "share": {"type": "number"}, "text_or_number": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
    "list": {"type": "array", "items": {"type": "integer"}},
}  # fmt: skip
SCHEMA = {
    "$defs": {"Unit": {"enum": ["c", "f"], "type": "string"}, "Point": {"type": "object", "properties": {"x": {}}}},
    "allOf": [{"type": "object", "properties": {"inherited": {"type": "integer"}}}],
    "properties": PYDANTIC,
    "additionalProperties": {"type": "string"},
}
TYPED: list[tuple[str, str, Any]] = [
    ("optional", "c", "c"), ("optional", '"c"', "c"), ("optional", "null", None), ("optional", "None", None),
    ("by_reference", "f", "f"), ("mixed", "auto", "auto"), ("mixed", "7", 7), ("named", "edit", "edit"),
    ("named", "null", None), ("model", '{"x": 1}', {"x": 1}), ("model", "{'x': None}", {"x": None}), ("three", "3", 3),
    ("numbers", "1", 1), ("text", "5", "5"), ("text", '"c"', '"c"'), ("text", "null", "null"), ("any", "[1]", [1]),
    ("any", "plain", "plain"), ("any", '"5"', "5"), ("flag", "True", True), ("flag", "0", False), ("count", "3.0", 3),
    ("count", "12345678901234567890", 12345678901234567890), ("count", "many", "many"), ("share", "1e3", 1000.0),
    ("share", "nan", "nan"), ("text_or_number", "5", 5), ("text_or_number", '"5"', "5"), ("text_or_number", '"a"', '"a"'),
    ("inherited", "4", 4), ("else", "4", "4"), ("list", "[1, None]", [1, None]),
]  # fmt: skip
WRITERS: dict[str, Callable[[str, str], str]] = {
    "qwen-xml": lambda name, text: (
        f"<tool_call>\n<function=f>\n<parameter={name}>\n{text}\n</parameter>\n</function>\n</tool_call>"
    ),
    "glm": lambda name, text: f"<tool_call>f\n<arg_key>{name}</arg_key>\n<arg_value>{text}</arg_value>\n</tool_call>",
    "minimax": lambda name, text: (
        f'<minimax:tool_call>\n<invoke name="f">\n<parameter name="{name}">{text}</parameter>\n</invoke>\n</minimax:tool_call>'
    ),
}
"""Calls of f with one argument, in the forms that write text."""


@pytest.mark.parametrize("form", WRITERS)
@pytest.mark.parametrize(("name", "text", "value"), TYPED)
def test_text_has_the_type_of_its_schema(core: AnswerProgram, form: str, name: str, text: str, value: Any) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}]
    (call,) = core.read(form, [WRITERS[form](name, text)], tools=tools)[2]
    assert repr(call) == repr(("f", {name: value}))


LFM2: list[tuple[str, list[Any]]] = [
    ("[f(s=b'a')]", [("f", {"s": "a"})]),
    ("[f(s={1,2})]", [("f", {"s": [1, 2]})]),
    (r'[f(s="hi \ud83d\ude00")]', [("f", {"s": "hi 😀"})]),
    ("[f(from='x')]", [("f", {"from": "x"})]),
    ("[f(zip=02139)]", [("f", {"zip": "02139"})]),
    ("f(a=1)\ng(b=-.5)", [("f", {"a": 1}), ("g", {"b": -0.5})]),
    ('[{"name": "f", "arguments": {"a": 1}}]', [("f", {"a": 1})]),
    ("[f(s='it's', t=\"\"\"a\nb\"\"\", u=r'\\d', v=(1, True, null), w={'a': None,}, x=0xff, y=1_000)]",
     [("f", {"s": "it's", "t": "a\nb", "u": "\\d", "v": [1, True, None], "w": {"a": None}, "x": 255, "y": 1000})]),
    ("[f(a=1, a=2)]", [("f", {"a": 2})]), ("[f(a=1e999)]", []), ("[f(1)]", []), ("[f(a=g())]", []), ("[f(a=1", []),
    ("[f(a='", []),
]  # fmt: skip


@pytest.mark.parametrize(("text", "calls"), LFM2)
def test_calls_like_pythons(core: AnswerProgram, text: str, calls: list[Any]) -> None:
    content, _, found = core.read("lfm2", [f"<|tool_call_start|>{text}<|tool_call_end|>"])
    assert (found, content) == (calls, "" if calls else text)


OTHERS: list[tuple[str, str, Answer]] = [
    ("harmony", '<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{"a": 1}<|call|>',
     ("", "", [("f", {"a": 1})])),
    ("gemma4", '<|channel>thought\nhm\n<channel|>Wait.<|tool_call>call:f{a:[1,<|"|>}<|"|>],b:{c:true}}<tool_call|>',
     ("Wait.", "hm", [("f", {"a": [1, "}"], "b": {"c": True}})])),
    ("kimi", '<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"a": 1}<|tool_call_end|>'
     '<|tool_calls_section_end|>', ("", "", [("f", {"a": 1})])),
    ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {"a": [1]}}]', ("", "", [("f", {"a": [1]})])),
    ("mistral", 'A[TOOL_CALLS]f[CALL_ID]x[ARGS]{"a": "}"}[TOOL_CALLS]g[ARGS]{}', ("A", "", [("f", {"a": "}"}), ("g", {})])),
    ("nemotron", '<TOOLCALL>[{"name": "f", "arguments": {}}]</TOOLCALL>', ("", "", [("f", {})])),
    ("jamba", '<tool_calls>[\n{"name": "f", "arguments": "{\\"a\\": 1}"}\n]</tool_calls>', ("", "", [("f", {"a": 1})])),
    ("deepseek", '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{"a": 1}\n```<｜tool▁call▁end｜>'
     '<｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>', ("", "", [("f", {"a": 1}), ("g", {})])),
    ("hermes", 'A \n<tool_call>\n{"name": "f", "arguments": {"a": "</tool_call>"}}\n</tool_call>\n\nB\n',
     ("A \n\n\nB", "", [("f", {"a": "</tool_call>"})])),
    ("hermes", "<think>\na <tool_call> b\n</think>\n\nc", ("c", "a <tool_call> b", [])),
]  # fmt: skip


@pytest.mark.parametrize(("form", "text", "answer"), OTHERS)
def test_other_families_and_what_is_around_calls(core: AnswerProgram, form: str, text: str, answer: Answer) -> None:
    for size in (1, 3, len(text)):
        assert core.read(form, cut(text, range(size, len(text), size))) == answer


MENTIONS = {
    "glm": "<|user|>\nWhat does <think> mean?<|assistant|>\n",
    "mistral": "[INST] What does [THINK] mean? [/INST]",
    "thinking": "<|User|>What does <think> mean?<|Assistant|>",
    "gemma4": "<|turn>user\n<|channel>thought<turn|>\n<|turn>model\n",
    "hermes": "<|im_start|>user\n<think>?<|im_end|>\n<|im_start|>assistant\n",
}


@pytest.mark.parametrize("form", MENTIONS)
def test_a_mark_in_a_question_begins_no_reasoning(core: AnswerProgram, form: str) -> None:
    assert core.read(form, ["Hello."], MENTIONS[form]) == ("Hello.", "", [])
    begun = "<|channel>thought\n" if form == "gemma4" else "<think>\n"
    assert core.read(form, ["Hello."], MENTIONS[form] + begun) == ("", "Hello.", [])


CUT = {
    "qwen-xml": "<tool_call>\n<function=f>\n<parameter=a>\nx\n</parameter>\n<parameter=b>\ny\n</parameter>\n</function>",
    "glm": "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>x</arg_value>\n</tool_call>",
    "lfm2": "<|tool_call_start|>[f(a=1, b=2)]",
    "hermes": '<tool_call>\n{"name": "f", "arguments": {"a": 1}}',
    "minimax": '<minimax:tool_call>\n<invoke name="f">\n<parameter name="a">x</parameter>\n</invoke>',
    "kimi": "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}<|tool_call_end|>",
    "gemma4": "<|tool_call>call:f{a:1}",
    "harmony": "<|channel|>commentary to=functions.f<|message|>{}",
}


@pytest.mark.parametrize("form", CUT)
def test_a_call_that_is_cut_off_is_none(core: AnswerProgram, form: str) -> None:
    prompt = "<|start|>assistant" if form == "harmony" else CHATML
    assert len(core.read(form, [CUT[form]], prompt)[2]) == 1
    for end in range(len(CUT[form])):
        assert core.read(form, [CUT[form][:end]], prompt)[2] == []


CLOSED = {
    **{form: ("", text) for form, text in CUT.items() if form not in ("harmony", "qwen-xml", "hermes", "minimax", "lfm2")},
    "qwen-xml": ("", f"{CUT['qwen-xml']}\n</tool_call>"),
    "hermes": ("", f"{CUT['hermes']}\n</tool_call>"),
    "minimax": ("", f"{CUT['minimax']}\n</minimax:tool_call>"),
    "lfm2": ("", f"{CUT['lfm2']}<|tool_call_end|>"),
    "kimi": ("", f"{CUT['kimi']}<|tool_calls_section_end|>"),
    "gemma4": ("", f"{CUT['gemma4']}<tool_call|>"),
    "harmony": ("<|start|>assistant", "<|channel|>commentary to=functions.f<|message|>{}<|call|>"),
    "deepseek": ("", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{}\n```<｜tool▁call▁end｜>"
                 "<｜tool▁calls▁end｜>"),
    "nemotron": ("", '<TOOLCALL>[{"name": "f", "arguments": {}}]</TOOLCALL>'),
    "jamba": ("", '<tool_calls>[{"name": "f", "arguments": {}}]</tool_calls>'),
    "cohere": ("", '<|START_ACTION|>[{"tool_name": "f", "parameters": {}}]<|END_ACTION|>'),
    "apertus": ("", '<|tools_prefix|>[{"f": {}}]<|tools_suffix|>'),
    "solar": ("", "<|tool_calls|><|tool_call:begin|>0<|tool_call:name|>f<|tool_call:args|>{}<|tool_call:end|><|calls|>"),
    "hunyuan": ("", "<tool_calls:opensource><tool_call:opensource>f<tool_sep:opensource></tool_call:opensource>"
                "</tool_calls:opensource>"),
    "functionary": ("", "<function=f>{}</function>"),
    "minicpm": ("", '<function name="f"><param name="a">x</param></function>'),
    "seed": ("", "<seed:tool_call><function=f></function></seed:tool_call>"),
    "atem": ("<|start|>assistant to=f<|message|>",
             '<atem:function_calls><atem:invoke name="f"></atem:invoke></atem:function_calls>'),
}  # fmt: skip
"""A prompt, and a call with its closing marks, by form."""


@pytest.mark.parametrize("form", CLOSED)
def test_half_of_a_closing_mark_is_no_content(core: AnswerProgram, form: str) -> None:
    prompt, text = CLOSED[form]
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert len(core.read(form, [text], prompt or CHATML, tools)[2]) == 1
    for end in range(len(text)):
        content, _, calls = core.read(form, [text[:end]], prompt or CHATML, tools)
        assert not calls or content == ""
        assert end <= text.rindex("<") or not content.endswith(text[text.rindex("<") : end])


HALVES = [
    ("hermes", "", "Look <tool_c", ("Look", "", [])), ("hermes", "<think>", "so </thi", ("", "so", [])),
    ("hermes", "", "for s<t", ("for s<t", "", [])), ("hermes", "", "a <thi", ("a", "", [])),
    ("hermes", "", "a <", ("a <", "", [])),
    ("gemma4", "", "a <|tool_ca", ("a", "", [])), ("harmony", "<|channel|>final<|message|>", "Yes<|retu", ("Yes", "", [])),
]  # fmt: skip


@pytest.mark.parametrize(("form", "begun", "text", "answer"), HALVES)
def test_half_of_a_mark_at_the_end_is_dropped(core: AnswerProgram, form: str, begun: str, text: str, answer: Answer) -> None:
    prompt = ("<|start|>assistant" if form == "harmony" else CHATML) + begun
    for size in (1, 3, len(text)):
        assert core.read(form, cut(text, range(size, len(text), size)), prompt) == answer


SPELLED = {
    "[INST] {} [/INST]{{# [TOOL_CALLS] #}}": ("[THINK]", "[/THINK]"),
    "<|user|>\n{}<|assistant|>\n{{# <arg_key> #}}": ("<think>", "</think>"),
    "<|turn>user\n{}<turn|>\n<|turn>model\n{{# <|tool_call> #}}": ("<|channel>thought\n", "<channel|>"),
}
"""Prompts of templates that are no ChatML, with what says their family, and marks of their reasoning."""


@pytest.mark.parametrize("template", SPELLED)
def test_a_question_cannot_begin_the_answer_of_another_familys_template(core: AnswerProgram, template: str) -> None:
    mark, end = SPELLED[template]
    for turn in (CHATML, "<|start|>assistant", "<|start_of_role|>assistant<|end_of_role|>"):
        prompt = template.partition("{{#")[0].format(f"What does {turn}{mark} mean?")
        assert core.read("", ["Hello."], prompt, template=template) == ("Hello.", "", [])
        assert core.read("", [f"so{end}Yes."], prompt + mark, template=template) == ("Yes.", "so", [])


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(arguments=st.dictionaries(st.text(), VALUES, max_size=4), ascii_only=st.booleans(), data=st.data())
@settings(max_examples=3 * settings().max_examples)
def test_arguments_in_json_come_back(
    core: AnswerProgram, arguments: dict[str, Any], ascii_only: bool, data: st.DataObject
) -> None:
    written = json.dumps(arguments, ensure_ascii=ascii_only)
    text = data.draw(st.sampled_from(
        [("hermes", f'<tool_call>\n{{"name": "f", "arguments": {written}}}\n</tool_call>'),
         ("mistral", f"[TOOL_CALLS]f[ARGS]{written}"), ("granite", f'<|tool_call|>[{{"name": "f", "arguments": {written}}}]'),
         ("functionary", f"<function=f>{written}</function>")]
    ))  # fmt: skip
    pieces = cut(text[1], data.draw(st.lists(st.integers(0, len(text[1])), max_size=6)))
    assert core.read(text[0], pieces) == ("", "", [("f", arguments)])


@given(form=st.sampled_from(sorted(WRITERS)), value=VALUES, kind=st.sampled_from(["any", "own", "text or null"]))
@settings(max_examples=5 * settings().max_examples)
def test_every_value_can_be_written_as_text(core: AnswerProgram, form: str, value: Any, kind: str) -> None:
    """Strings as they are, or as JSON where they would be something else; other values as JSON."""
    name = {dict: "object", list: "array", str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}
    own = name[type(value)]
    schema = {"any": {}, "own": {"type": own}, "text or null": {"type": ["string", "null", own]}}[kind]

    def read(text: str) -> Any:
        return core.read(form, [WRITERS[form]("a", text)], tools=tool(a=schema))[2]

    right = [("f", {"a": value})]
    text = value if isinstance(value, str) else json.dumps(value)
    assert read(text) == right or (kind != "own" and isinstance(value, str) and read(json.dumps(value)) == right)


HOSTILE = {
    "spaces": ("hermes", " " * 400_000),
    "marks": ("hermes", "<tool_call>{}</tool_call>" * 20_000),
    "half marks": ("hermes", "<tool_cal" * 40_000),
    "open": ("hermes", "<tool_call>" + "[" * 400_000),
    "deep": ("lfm2", "<|tool_call_start|>[f(a=" + "{" * 400_000 + "<|tool_call_end|>"),
    "many": ("lfm2", "<|tool_call_start|>[f(" + ",".join(f"a{i}=1" for i in range(40_000)) + ")]<|tool_call_end|>"),
    "quotes": ("lfm2", "<|tool_call_start|>[f(a='" + "' " * 200_000 + "<|tool_call_end|>"),
    "tags": ("qwen-xml", "<tool_call>" + "<parameter=a>" * 30_000),
    "huge": ("hermes", '<tool_call>{"a": "' + "x" * 3_000_000),
    "headers": ("harmony", "<|channel|>" * 40_000),
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("size", [7, 1 << 30])
def test_hostile_answers_take_linear_time(core: AnswerProgram, name: str, size: int) -> None:
    form, text = HOSTILE[name]
    began = time.monotonic()
    core.read(form, cut(text, range(size, len(text), size)))
    assert time.monotonic() - began < 20


def test_noise_ends_somehow(core: AnswerProgram) -> None:
    """The program lives, and what it reads does not depend on how it is cut."""
    forms = [*CUT, "deepseek", "mistral", "granite", "jamba"]
    chance = random.Random(5)
    parts = ["<think>", "</think>", "<|channel|>", "<|message|>", "<|end|>", "to=f ", *"{}[]\"'a \n",
             *(case[2] for case in CASES), *(text for _, text, _ in OTHERS), *CUT.values()]  # fmt: skip
    for _ in range(150):
        form, text = chance.choice(forms), "".join(chance.choices(parts, k=6))
        text = text[chance.randrange(9) : len(text) - chance.randrange(9)]
        places = chance.sample(range(len(text) + 1), 5) if len(text) > 5 else []
        assert core.read(form, cut(text, places)) == core.read(form, [text])
