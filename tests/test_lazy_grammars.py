"""Grammars that begin within a text: behind reasoning, and in calls that the model makes of its own accord."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import openai
import pytest
import torch
from asking import client, close_clients, user
from scripted import OPENING, TEMPLATE, TOOLS, speaker
from served import BYTES, END

from hybridge.export.server.call_grammars import call_schema, json_call, json_calls, xml_calls
from hybridge.export.server.requests import Function
from hybridge.runtime.structured.grammars import Grammars
from hybridge.runtime.structured.lazy import Lazy

FUNCTIONS = [Function(**each["function"]) for each in TOOLS]
NESTED = Function(
    name="draw",
    parameters={
        "type": "object",
        "properties": {"at": {"$ref": "#/$defs/Point"}, "colour": {"enum": ["red", "blue"]}, "label": {"type": "string"}},
        "required": ["at"],
        "additionalProperties": False,
        "$defs": {"Point": {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}},
    },
)


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    close_clients()


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    return Grammars(BYTES.to_str(), 260, [END])


def lazy(grammars: Grammars, **options: Any) -> Lazy:
    grammar = grammars.regex("[ab]{3}")
    return Lazy(BYTES.decode, lambda text: list(text.encode()), "<go>", grammar.follow, **options)


def allowed(constraint: Lazy) -> set[int]:
    masked = constraint.mask(torch.zeros(260))
    return {token for token in range(260) if masked[token] == 0}


def write(constraint: Lazy, text: str) -> None:
    for byte in text.encode():
        assert byte in allowed(constraint), text
        assert constraint.fitting([byte]) == 1
        constraint.take(byte)


def test_the_grammar_begins_behind_the_opening_and_ends_the_text(grammars: Grammars) -> None:
    one = lazy(grammars, before=[END], spaces="\n\n")
    assert END not in allowed(one), "the text does not end before it"
    assert one.fitting([*b"x<go", END]) == 4
    write(one, "abx<g <")
    assert len(allowed(one)) == 259
    write(one, "go>")  # "<" was written just before
    assert one.forced() == [10, 10]
    assert allowed(one) == {10}
    assert one.fitting(list(b"\nab")) == 1
    write(one, "\n\nab")
    assert allowed(one) == {97, 98}
    write(one, "b")
    assert allowed(one) == {END}


def test_behind_the_end_the_choice_is_free_again(grammars: Grammars) -> None:
    one = lazy(grammars, again=True)
    for _ in range(3):
        write(one, "anything <go>")
        assert allowed(one) == {97, 98}
        assert one.fitting(list(b"aXb")) == 1
        write(one, "aba")
        assert len(allowed(one)) == 260
    assert one.fitting([1, 2, 3]) == 3


class Wide:
    """Tokens of several characters: what stands behind the opening in the same one counts, where it fits."""

    words = ("x", "<go>", "<go>a", "<go>x", "a", "b")

    def decode(self, tokens: Any) -> str:
        return "".join(self.words[token] for token in tokens)


@pytest.mark.parametrize(("token", "fits"), [(1, {97, 98}), (2, {97, 98}), (3, set(range(260)))])
def test_a_token_may_have_the_opening_and_more(grammars: Grammars, token: int, fits: set[int]) -> None:
    grammar = grammars.regex("[ab]{3}")
    one = Lazy(Wide().decode, lambda text: list(text.encode()), "<go>", grammar.follow, spaces="")
    one.take(0)
    one.take(token)
    assert allowed(one) == fits


CALLS: list[tuple[Any, list[Function], str]] = [
    (json_call, FUNCTIONS, '\n{"name": "weather", "arguments": {"place": "here", "days": 3}}'),
    (json_call, FUNCTIONS, '{"name": "weather", "arguments": {"place": |3'),
    (json_call, FUNCTIONS, '{"name": "w|hether'),
    (json_call, [*FUNCTIONS, NESTED], '{"name": "draw", "arguments": {"at": [1, 2]}}'),
    (json_call, [*FUNCTIONS, NESTED], '{"name": "draw", "arguments": {"at": [1|]'),
    (json_calls, [*FUNCTIONS, NESTED], '[{"name": "draw", "arguments": {"at": [1, 2]}}, {"name": "clock", "arguments": {}}]'),
    (xml_calls, FUNCTIONS, "\n<function=weather>\n<parameter=place>\n<a>\n</parameter>\n</function>"),
    (xml_calls, FUNCTIONS, "<function=weather>\n<parameter=place>\nx\n</parameter>\n<parameter=days>\n|some"),
    (xml_calls, FUNCTIONS, "<function=weather>\n<parameter=|days>"),
    (
        xml_calls,
        [NESTED],
        "<function=draw>\n<parameter=at>\n[1, 2]\n</parameter>\n<parameter=colour>\nred\n</parameter>\n</function>",
    ),
    (xml_calls, [NESTED], "<function=draw>\n<parameter=at>\n[1, 2]\n</parameter>\n<parameter=colour>\n|green"),
]
"""What makes the grammar, its tools, and a call; behind a bar what does not fit."""


@pytest.mark.parametrize(("make", "functions", "text"), CALLS)
def test_calls_fit_as_far_as_their_schema_does(grammars: Grammars, make: Any, functions: list[Function], text: str) -> None:
    follower, (fits, bar, wrong) = grammars.lark(make(functions)).follow(), text.partition("|")
    assert follower.fitting(list((fits + wrong).encode())) == len(fits)
    for token in fits.encode():
        follower.take(token)
    assert follower.ended == (not bar)


def test_definitions_of_several_tools_do_not_meet() -> None:
    other = NESTED.model_copy(update={"name": "other"})
    schema = call_schema([NESTED, other])
    assert set(schema["$defs"]) == {"0.Point", "1.Point"}
    at = schema["anyOf"][1]["properties"]["arguments"]["properties"]["at"]
    assert at == {"$ref": "#/$defs/1.Point"}
    assert "$defs" in (NESTED.parameters or {}), "a request stays as it was"


@pytest.mark.parametrize("form", ["", "{# <function= #}"])
def test_a_schema_that_is_none_leaves_calls_free(form: str) -> None:
    """Of what a client sends nothing is trusted: also such a tool may be offered, and is no error of the server's."""
    wrong: list[Any] = [
        {"properties": [1]}, {"properties": {"a": 3}}, {"required": 5, "properties": {"a": {}}}, {"$defs": 3},
        {"type": "nonsense"}, {"properties": {"a b>": {"type": "string"}}}, {"properties": {"a": {"enum": {}}}},
    ]  # fmt: skip
    with speaker(lambda prompt: "Nothing to call.", TEMPLATE + form) as one:
        for parameters in wrong:
            tools: Any = [{"type": "function", "function": {"name": "odd", "parameters": parameters}}]
            answer = client(one).chat.completions.create(model="babble", messages=user("a"), tools=tools, max_tokens=30)
            assert answer.choices[0].message.content == "Nothing to call.", parameters
            with suppress(openai.BadRequestError):  # a call that must fit no schema
                client(one).chat.completions.create(
                    model="babble", messages=user("a"), tools=tools, tool_choice="required", max_tokens=30
                )


STUBBORN = 'Let me see.\n<tool_call>\n{"name": "whether", "arguments": {"place": "here"}}\n</tool_call>'


@pytest.mark.parametrize("drafts", [True, False])
def test_a_call_that_nobody_asked_for_fits_too(drafts: bool) -> None:
    """The model would call what there is not; without the grammar it does."""
    with speaker(lambda prompt: STUBBORN) as one:
        for place in one.places:
            object.__setattr__(place, "drafter", place.drafter if drafts else None)
        message = client(one).chat.completions.create(model="babble", messages=user("a"), tools=TOOLS, max_tokens=200)
        assert message.choices[0].message.content == "Let me see."
        (call,) = message.choices[0].message.tool_calls or ()
        assert call.function.name == "weather"  # type: ignore[union-attr]
        assert json.loads(call.function.arguments) == {"place": "here"}  # type: ignore[union-attr]
        text = client(one).chat.completions.create(model="babble", messages=user("a"), max_tokens=200)
        assert "whether" in (text.choices[0].message.content or "")


def test_a_model_may_think_before_a_structured_answer() -> None:
    template = TEMPLATE.replace(OPENING, OPENING + "<think>\n")
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
    wanted: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    with speaker(lambda prompt: '<think>\nSeven <b>?\n</think>\n\n{"n": 7}', template) as one:
        for options in ({}, {"temperature": 0.3, "seed": 5}):
            answer = client(one).chat.completions.create(
                model="babble", messages=user("a"), response_format=wanted, max_tokens=200, **options
            )
            message = answer.choices[0].message
            assert message.reasoning_content == "Seven <b>?"  # type: ignore[attr-defined]
            assert json.loads(message.content or "") == {"n": 7}
            assert answer.choices[0].finish_reason == "stop"
