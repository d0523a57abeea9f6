"""Grammars in the server: whole answers, and those that begin behind reasoning or in a call of the model's own accord."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

import numpy as np
import openai
import pytest
from pydantic import BaseModel, ConfigDict, Field
from scripted import OPENING, TEMPLATE, TOOLS, speaker
from served import BYTES, END, Served, ask, chat, client, user

from hybridge.cache.errors import GrammarError
from hybridge.runtime.server.requests import Function
from hybridge.runtime.server.structure import call_schema, json_call, json_calls, xml_calls
from hybridge.runtime.text.grammars import Grammars, Lazy

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
TREE = Function(
    name="grow",
    parameters={
        "type": "object",
        "properties": {
            "label": {"type": "string", "maxLength": 3},
            "also": {"$ref": "#/properties/label"},
            "child": {"$ref": "#"},
            "colour": {"$ref": "#/definitions/a~1b%20c"},
            "mark": {"const": {"$ref": "#/$defs/data"}},
        },
        "additionalProperties": False,
        "definitions": {"a/b c": {"enum": ["red", "blue"]}},
    },
)
"""Refers to itself as a whole, to a property, and to a definition of the older name; a constant only looks like a reference."""


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    return Grammars(BYTES, 260, [END])


def lazy(grammars: Grammars, **options: Any) -> Lazy:
    grammar = grammars.lark("start: /[ab]{3}/")
    return Lazy(BYTES.decode, lambda text: list(text.encode()), "<go>", grammar.follow, **options)


def allowed(constraint: Lazy) -> set[int]:
    masked = np.zeros(260, np.float32)
    constraint.mask(masked)
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
    grammar = grammars.lark("start: /[ab]{3}/")
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
    (json_call, [*FUNCTIONS, TREE], '{"name": "grow", "arguments": {"label": "a", "child": {"child": {"label": "b"}}}}'),
    (json_call, [*FUNCTIONS, TREE], '{"name": "grow", "arguments": {"child": {"|name": "grow", "arguments": {}}}}'),
    (json_call, [TREE], '{"name": "grow", "arguments": {"also": "abc|d'),
    (json_call, [TREE], '{"name": "grow", "arguments": {"colour": "red", "mark": {"$ref": "#/$defs/data"}}}'),
    (json_call, [TREE], '{"name": "grow", "arguments": {"child": {"colour": "|green'),
    (json_calls, [NESTED, TREE], '[{"name": "grow", "arguments": {"child": {"colour": "blue"}}}]'),
    (xml_calls, [TREE], '<function=grow>\n<parameter=child>\n{"child": {"label": "b"}}\n</parameter>\n</function>'),
    (xml_calls, [TREE], '<function=grow>\n<parameter=child>\n{"|name": "grow"}'),
    (xml_calls, [TREE], "<function=grow>\n<parameter=colour>\nred\n</parameter>\n</function>"),
    (xml_calls, [TREE], "<function=grow>\n<parameter=colour>\n|green"),
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
    assert set(schema["$defs"]) == {"0.0", "1.0"}
    at = schema["anyOf"][1]["properties"]["arguments"]["properties"]["at"]
    assert at == {"$ref": "#/$defs/1.0"}
    assert "$defs" in (NESTED.parameters or {}), "a request stays as it was"


ODD: list[tuple[Any, str]] = [
    ({"properties": [1]}, "object"), ({"properties": {"a": {"type": "nonsense"}}}, "nonsense"),
    ({"properties": {"a": {"$ref": "#/$defs/none"}}}, "no schema at"),
    ({"properties": {"a": {"$ref": "other.json#/a"}}}, "not inside its own schema"),
    ({"properties": {"a": {"$ref": 3}}}, "must be a text"),
    ({"properties": {"a": {"type": "object", "$id": "b", "properties": {"c": {"$ref": "#"}}}}}, "'\\$id'"),
    ({"properties": {"a": {"type": "array", "uniqueItems": True}}}, "uniqueItems"),
]  # fmt: skip
"""Parameters of a tool that no grammar can say, and what is said of them."""


@pytest.mark.parametrize("form", ["", "{# <function= #}"])
def test_parameters_that_cannot_be_followed_are_refused_by_the_tools_name(form: str) -> None:
    """Whether a call is asked for or not; by the tool's own word that it is not strict, its calls are free."""
    with speaker(lambda prompt: "Nothing to call.", TEMPLATE + form) as one:
        for parameters, says in ODD:
            for choice in ("auto", "required"):
                odd: Any = {"type": "function", "function": {"name": "odd", "parameters": parameters}}
                with pytest.raises(openai.BadRequestError, match=f"parameters of odd cannot be followed: .*{says}"):
                    chat(one, "a", tools=[TOOLS[0], odd], tool_choice=choice)
            odd["function"]["strict"] = False
            answer = chat(one, "a", tools=[TOOLS[0], odd], max_tokens=30)
            assert answer.choices[0].message.content == "Nothing to call.", parameters


def test_a_tool_that_is_not_strict_may_be_called_with_anything() -> None:
    """The others are held to their schemas."""
    loose: Any = {"type": "function", "function": {"name": "odd", "strict": False, "parameters": ODD[-1][0]}}
    said = '<tool_call>\n{"name": "odd", "arguments": {"a": "x"}}\n</tool_call>' + STUBBORN
    with speaker(lambda prompt: said) as one:
        answer = chat(one, "a", tools=[TOOLS[0], loose], max_tokens=300)
    calls = [call.function for call in answer.choices[0].message.tool_calls or ()]
    assert [(call.name, json.loads(call.arguments)) for call in calls] == [("odd", {"a": "x"}), ("weather", {"place": "here"})]


def test_a_parameter_in_xml_gets_the_type_that_its_reference_names() -> None:
    tool: Any = {"type": "function", "function": {"name": "grow", "parameters": TREE.parameters}}
    said = '<tool_call>\n<function=grow>\n<parameter=child>\n{"label": "b"}\n</parameter>\n</function>\n</tool_call>'
    with speaker(lambda prompt: said, TEMPLATE + "{# <function= #}") as one:
        answer = chat(one, "a", tools=[tool], max_tokens=300)
    (call,) = answer.choices[0].message.tool_calls or ()
    assert json.loads(call.function.arguments) == {"child": {"label": "b"}}


def test_references_cannot_make_a_schema_grow_without_end() -> None:
    deep: Any = {"properties": {f"p{i}": {"type": "null"} for i in range(2000)}}
    for i in range(100):
        deep = {"properties": {"in": deep, "up": {"$ref": "#" + "/properties/in" * i}}}
    with pytest.raises(GrammarError, match="more than 20000"):
        call_schema([Function(name="deep", parameters=deep)])
    chain = {f"d{i}": {"items": {"$ref": f"#/$defs/d{i + 1}"}} for i in range(3000)}
    schema = call_schema([Function(name="long", parameters={"$ref": "#/$defs/d0", "$defs": {**chain, "d3000": {}}})])
    assert len(schema["$defs"]) == 3001


STUBBORN = 'Let me see.\n<tool_call>\n{"name": "whether", "arguments": {"place": "here"}}\n</tool_call>'


@pytest.mark.parametrize("drafts", [True, False])
def test_a_call_that_nobody_asked_for_fits_too(drafts: bool) -> None:
    """The model would call what there is not; without the grammar it does."""
    with speaker(lambda prompt: STUBBORN) as one:
        for place in one.places:
            object.__setattr__(place, "drafter", place.drafter if drafts else None)
        message = chat(one, "a", tools=TOOLS, max_tokens=200)
        assert message.choices[0].message.content == "Let me see."
        (call,) = message.choices[0].message.tool_calls or ()
        assert call.function.name == "weather"
        assert json.loads(call.function.arguments) == {"place": "here"}
        text = chat(one, "a", max_tokens=200)
        assert "whether" in (text.choices[0].message.content or "")


def test_a_model_may_think_before_a_structured_answer() -> None:
    template = TEMPLATE.replace(OPENING, OPENING + "<think>\n")
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
    wanted: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    with speaker(lambda prompt: '<think>\nSeven <b>?\n</think>\n\n{"n": 7}', template) as one:
        for options in ({}, {"temperature": 0.3, "seed": 5}):
            answer = chat(one, "a", response_format=wanted, max_tokens=200, **options)
            message = answer.choices[0].message
            assert message.reasoning_content == "Seven <b>?"
            assert json.loads(message.content or "") == {"n": 7}
            assert answer.choices[0].finish_reason == "stop"


# Answers that follow a schema as a whole


THING: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 6}, "kind": {"enum": ["abacus", "bridge"]}},
    "required": ["name", "kind"],
    "additionalProperties": False,
}


class Count(BaseModel):
    """What an answer is to be."""

    model_config = ConfigDict(extra="forbid")
    kind: Literal["one", "two"]
    count: Annotated[int, Field(ge=0, le=99)]


def test_the_server_answers_in_a_schema(babbling_server: Served) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "thing", "strict": True, "schema": THING}}
    whole, chunks = (
        chat(babbling_server, "a thing", max_tokens=150, response_format=form, stream=each) for each in (False, True)
    )
    text = whole.choices[0].message.content
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text
    assert json.loads(text)["kind"] in ("abacus", "bridge")
    yes = {"prompt": "is it? ", "response_format": {"type": "regex", "regex": "yes|no"}}
    status, raw = ask(babbling_server, "/v1/completions", yes)
    assert status == 200
    assert raw["choices"][0]["text"] in ("yes", "no")
    parsed = client(babbling_server).chat.completions.parse(
        model="babble", messages=user("again"), max_tokens=100, response_format=Count, temperature=1.5, seed=2
    )
    if parsed.choices[0].finish_reason == "stop":
        assert isinstance(parsed.choices[0].message.parsed, Count)


@pytest.mark.parametrize(
    ("form", "says"),
    [
        ({"type": "json_schema"}, "needs the field json_schema"),
        ({"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "nonsense"}}}, "nonsense"),
        ({"type": "regex", "regex": "("}, "regular expression"),
        ({"type": "poem"}, "response_format"),
    ],
)
def test_a_form_that_cannot_be_followed_is_refused(babbling_server: Served, form: dict[str, Any], says: str) -> None:
    status, answer = ask(babbling_server, "/v1/chat/completions", {"messages": user("a"), "response_format": form})
    assert status == 400
    assert says in answer["error"]["message"]
