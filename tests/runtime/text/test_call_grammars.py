"""Calls that a grammar lets through: the parser of the same form turns them into arguments that fit the tool's schema."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from json_schemas import fits, parameters
from served import BYTES, END

from hybridge.cache.errors import GrammarError
from hybridge.runtime.core.grammar import Follower
from hybridge.runtime.text.answers import AnswerFormat, Call
from hybridge.runtime.text.grammars import Grammars

FORMS = {
    "hermes": ("<tool_call>", "</tool_call>"), "qwen-xml": ("<tool_call>", "</tool_call>"), "granite": ("<|tool_call|>", ""),
    "seed": ("<seed:tool_call>", "</seed:tool_call>"), "minimax": ("<minimax:tool_call>", "</minimax:tool_call>"),
    "nemotron": ("<TOOLCALL>", "</TOOLCALL>"),
}  # fmt: skip
"""The texts that open and close calls in each form with a grammar."""
SNIPPETS = (
    *("\n</parameter>\n", "</parameter>\n", "</function>", "</invoke>", '"}}', "]", "}", '"'),
    *("</tool_call>", "</parameter>", "<![CDATA[", "]]>", "null", "None", "true", "False", "5", "-0.5e3", '"5"', '"null"'),
    *("[1]", "{}", '{"x": 1}', " null ", "two words", "\n", "é"),
)
"""Texts that end something, or that a parser might take for something else."""


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    return Grammars(BYTES, 260, [END])


def tool(schema: Any) -> list[Any]:
    return [{"type": "function", "function": {"name": "act", "parameters": schema}}]


def parsed(form: str, tools: list[Any], said: str) -> list[Call]:
    answer = AnswerFormat.named(form).answer("<|im_start|>assistant\n", tools)
    answer.feed(FORMS[form][0] + said + FORMS[form][1])
    answer.finish()
    assert not answer.content, said
    return answer.calls


def follower(grammars: Grammars, form: str, tools: list[Any]) -> Follower:
    one = grammars.calls(tools, AnswerFormat.named(form)).follow()
    for byte in FORMS[form][0].encode():
        one.take(byte)
    return one


def walk(one: Follower, rng: Random, most: int = 600) -> str | None:
    """Return a random call; None if it does not end in time."""
    said = bytearray()
    while len(said) < most:
        logits = np.zeros(260, np.float32)
        one.mask(logits)
        if logits[END] == 0:
            return said.decode()
        allowed = np.flatnonzero(logits == 0).tolist()
        likely = [each for each in allowed if 32 <= each < 127]
        next_ = bytes([rng.choice(likely if likely and rng.random() < 0.95 else allowed)])
        if len(said) > most // 3 or rng.random() < 0.5:
            ends = SNIPPETS[:8] if len(said) > most // 3 else rng.sample(SNIPPETS, 4)
            next_ = next((each.encode() for each in ends if one.fitting(list(each.encode())) == len(each.encode())), next_)
        for byte in next_:
            one.take(byte)
            said.append(byte)
            one.mask(logits := np.zeros(260, np.float32))
            if logits[END] == 0:
                break
    return None


def check(grammars: Grammars, seed: int) -> str | None:
    rng = Random(seed)
    tools, form = tool(parameters(rng)), rng.choice(list(FORMS))
    schema = tools[0]["function"]["parameters"]
    try:
        one = follower(grammars, form, tools)
    except GrammarError:  # nothing fits it
        return None
    said = walk(one, rng)
    for call in parsed(form, tools, said) if said is not None else ():
        assert call.name == "act"
        assert fits(schema, json.loads(call.arguments), schema), (form, schema, said, call.arguments)
    assert said is None or parsed(form, tools, said), said
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
    said = f"\n<function=act>\n<parameter=a>\n{text}\n</parameter>\n</function>"
    assert follower(grammars, "qwen-xml", tools).fitting(list(said.encode())) == len(said.encode())
    (call,) = parsed("qwen-xml", tools, said)
    assert json.loads(call.arguments) == {"a": value}


@settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**32))
def test_whatever_a_grammar_lets_through_becomes_arguments_that_fit(grammars: Grammars, seed: int) -> None:
    check(grammars, seed)


@pytest.mark.thorough
def test_whatever_a_grammar_lets_through_becomes_arguments_that_fit_for_2000_schemas(grammars: Grammars) -> None:
    ended = sum(check(grammars, seed) is not None for seed in range(2000))
    assert ended > 1500
