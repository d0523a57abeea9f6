"""Calls that a grammar lets through: the parser of the same form turns them into arguments that fit the tool's schema."""

from __future__ import annotations

import json
import re
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from json_schemas import fits, parameters
from served import BYTES, END
from tokenizers import Tokenizer as Reference

from hybridge.errors import GrammarError
from hybridge.runtime.binding.grammar import Follower
from hybridge.runtime.binding.library import SOURCES
from hybridge.runtime.binding.tokenizer import Tokenizer
from hybridge.runtime.text.answers import AnswerFormat, Call
from hybridge.runtime.text.grammars import Grammars

TABLE = Path(SOURCES) / "text/answers/form.cpp"
NAMES = re.findall(r'\{\.name = "([^"]+)"', TABLE.read_text())
FORMS = {name: form for name in NAMES if (form := AnswerFormat.named(name)).has_calls}
"""Every form of the core's table that has calls."""
LEADS = {"harmony": "<|channel|>commentary "}
"""Texts before the mark that opens calls."""
MARKS = sorted(
    {mark for form in FORMS.values() for mark in form.looked_for.split("\n") if re.fullmatch(r"\S*[|｜A-Z\]]>?", mark)}
)
"""Texts that most models have a special token for."""
SNIPPETS = (
    *("\n</parameter>\n", "</parameter>\n", "</param>", "</arg_value>", "</｜DSML｜parameter>", "</atem:parameter>"),
    *("<|close|>argument<|sep|>", '<|"|>', "</function>", "</invoke>", '"}}', '"}', ")]", "]", "}", '"', "'", "\n"),
    *("</tool_call>", "</parameter>", "<![CDATA[", "]]>", "null", "None", "true", "False", "5", "-0.5e3", '"5"', '"null"'),
    *("[1]", "{}", '{"x": 1}', " null ", "two words", "it's", "é"),
)
"""Texts that end something, or that a parser might take for something else."""
ENDS = 18
"""So many of them end something."""


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    return Grammars(BYTES, 260, [END])


@pytest.fixture(scope="module")
def special() -> Tokenizer:
    """Bytes, and the marks of all forms as special tokens."""
    made = Reference.from_str(BYTES.json.decode())
    made.add_special_tokens(MARKS)
    return Tokenizer(made.to_str().encode())


def tool(schema: Any) -> list[Any]:
    return [{"type": "function", "function": {"name": "act", "parameters": schema}}]


def parsed(form: str, tools: list[Any], said: str) -> list[Call]:
    prompt = "<|start|>assistant" if FORMS[form].description["has_channels"] else "<|im_start|>assistant\n"
    answer = FORMS[form].answer(prompt, tools)
    answer.feed(said)
    answer.finish()
    assert not answer.content, said
    return answer.calls


def opening(form: str) -> str:
    return LEADS.get(form, "") + str(FORMS[form].description["call_open"][0])


def follower(grammars: Grammars, form: str, tools: list[Any], choice: str = "auto") -> Follower:
    one = grammars.calls(tools, FORMS[form], choice).follow()
    for byte in opening(form).encode() if choice == "auto" else b"":
        one.take(byte)
    return one


def walk(one: Follower, tokenizer: Tokenizer, rng: Random, most: int = 600) -> str | None:
    """Return random calls; None if they do not end in time."""
    said, size = list[int](), tokenizer.info.vocab_size
    while len(said) < most:
        logits = np.zeros(size, np.float32)
        one.mask(logits)
        if logits[END] == 0 and (len(said) > most // 3 or rng.random() < 0.7 or (logits == 0).all()):
            return tokenizer.decode(said, skip_special_tokens=False)
        allowed = np.flatnonzero(logits == 0).tolist()
        likely = [each for each in allowed if 32 <= each < 127]
        chosen = [rng.choice(likely if likely and rng.random() < 0.9 else [each for each in allowed if each != END])]
        if len(said) > most // 3 or rng.random() < 0.5:
            ends = SNIPPETS[:ENDS] if len(said) > most // 3 else rng.sample(SNIPPETS, 4)
            texts = [tokenizer.encode(each, around=False).ids for each in ends]
            chosen = next((each for each in texts if one.fitting(each) == len(each)), chosen)
        for token in chosen:
            one.take(token)
            said.append(token)
            one.mask(logits := np.zeros(size, np.float32))
            if logits[END] == 0:
                break
    return None


def check(tokenizer: Tokenizer, seed: int, only: str = "") -> str | None:
    rng = Random(seed)
    tools, form, choice = tool(parameters(rng)), only or rng.choice(list(FORMS)), rng.choice(["auto", "required", "act"])
    schema = tools[0]["function"]["parameters"]
    try:
        one = follower(Grammars(tokenizer, tokenizer.info.vocab_size, [END]), form, tools, choice)
    except GrammarError:  # nothing fits it
        return None
    said = walk(one, tokenizer, rng)
    if said is None:
        return None
    said = (opening(form) if choice == "auto" else "") + said
    assert opening(form) in said
    calls = parsed(form, tools, said)
    assert calls, (form, said)
    for call in calls:
        assert call.name == "act"
        assert fits(schema, json.loads(call.arguments), schema), (form, schema, said, call.arguments)
    return said


OPTIONAL = {"anyOf": [{"enum": ["c", "f"], "type": "string"}, {"type": "null"}]}
POINT = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"], "additionalProperties": False}
WRITTEN: list[tuple[Any, str, Any]] = [
    (OPTIONAL, "c", "c"), (OPTIONAL, "null", None),
    ({"anyOf": [{"$ref": "#/$defs/Kind"}, {"type": "null"}]}, "red", "red"),
    ({"anyOf": [{"const": "a"}, {"type": "integer"}]}, "a", "a"), ({"anyOf": [{"const": "a"}, {"type": "integer"}]}, "7", 7),
    ({"enum": ["edit", None]}, "edit", "edit"), ({"enum": ["edit", None]}, "null", None), ({"enum": [1, 2]}, "2", 2),
    ({"anyOf": [{"$ref": "#/$defs/Point"}, {"type": "null"}]}, '{"x": 1}', {"x": 1}), ({"const": 3}, "3", 3),
    ({"anyOf": [{"type": "string"}, {"type": "null"}]}, '"null"', "null"),
    ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "any\ntext", "any\ntext"),
    ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "5", "5"),
    ({"type": "string", "pattern": "^[a-z]+$"}, "abc", "abc"), ({"type": "string", "maxLength": 3}, '"\\n', '"\\n'),
    ({"type": ["string", "integer"]}, '"5"', "5"), ({"type": ["string", "integer"]}, "5", 5),
]  # fmt: skip
"""The schema of a parameter, the text of a value between its tags, and the value."""
DEFS = {"Kind": {"enum": ["red", "blue"], "type": "string"}, "Point": POINT}


@pytest.mark.parametrize("place", ["properties", "allOf", "anyOf", "additionalProperties", "patternProperties"])
@pytest.mark.parametrize(("schema", "text", "value"), WRITTEN)
def test_values_as_text_have_the_type_of_their_schema(
    grammars: Grammars, schema: Any, text: str, value: Any, place: str
) -> None:
    """Wherever the schema of the parameters says something about an argument."""
    named = {"properties": {"a": schema}, "required": ["a"]}
    whole = {
        "properties": named, "allOf": {"allOf": [named]}, "anyOf": {"anyOf": [named, {"properties": {"b": {"type": "null"}}}]},
        "additionalProperties": {"additionalProperties": schema}, "patternProperties": {"patternProperties": {"^a": schema}},
    }[place]  # fmt: skip
    tools = tool({"type": "object", **whole, "$defs": DEFS})
    said = f"\n<function=act>\n<parameter=a>\n{text}\n</parameter>\n</function>\n</tool_call>"
    assert follower(grammars, "qwen-xml", tools).fitting(list(said.encode())) == len(said.encode())
    (call,) = parsed("qwen-xml", tools, "<tool_call>" + said)
    assert json.loads(call.arguments) == {"a": value}


def test_marks_that_are_special_tokens_are_forced_as_such(special: Tokenizer) -> None:
    """They are no part of an argument, and a mark may be a token that ends texts."""
    size, call, tools = (
        special.info.vocab_size,
        special.token_to_id("<|call|>"),
        tool({"properties": {"a": {"type": "string"}}}),
    )
    one = Grammars(special, size, [END]).calls(tools, FORMS["kimi"], "required").follow()
    assert one.forced() == [special.token_to_id("<|tool_calls_section_begin|>")]
    one = Grammars(special, size, [call]).calls(tools, FORMS["harmony"], "required").follow()
    for token in special.encode('<|channel|>commentary to=functions.act<|message|>{"a": "', around=False).ids:
        assert one.fitting([token]) == 1
        one.take(token)
    assert one.fitting([call]) == 0
    assert all(one.fitting([special.token_to_id(mark)]) == 0 for mark in MARKS)
    assert one.fitting([*b'"}', call, 1]) == 3
    (said,) = parsed("harmony", tools, '<|channel|>commentary to=functions.act<|message|>{"a": ""}')
    assert said.arguments == '{"a": ""}'


@pytest.mark.parametrize("form", FORMS)
def test_whatever_a_grammar_lets_through_becomes_arguments_that_fit(special: Tokenizer, form: str) -> None:
    for seed in range(4):
        check(special if seed % 2 else BYTES, seed, form)


@pytest.mark.thorough
def test_whatever_a_grammar_lets_through_becomes_arguments_that_fit_for_2000_schemas(special: Tokenizer) -> None:
    ended = sum(check(special if seed % 2 else BYTES, seed) is not None for seed in range(2000))
    assert ended > 1500
