"""Grammars in the server: whole answers, and those that begin after reasoning or in a call of the model's own accord."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import openai
import pytest
from scripted import OPENING, TEMPLATE, TOOLS, speaker
from served import BYTES, END, Served, ask, chat, client, user
from structures import Answer
from tokenizers import ByteLevelBPETokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

from hybridge.errors import GrammarError
from hybridge.runtime.binding.grammar import Follower
from hybridge.runtime.binding.tokenizer import Tokenizer
from hybridge.runtime.server.requests import Function
from hybridge.runtime.text.answers import AnswerFormat
from hybridge.runtime.text.grammars import Grammars

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


def follower(grammars: Grammars, form: str, functions: list[Function], after: str = "", *, single: bool = False) -> Follower:
    tools = [{"function": {"name": each.name, "parameters": each.parameters}} for each in functions]
    named = AnswerFormat.named(form or "hermes")
    return grammars.calls(tools, named, "auto" if form else "required", single=single).follow(after)


def allowed(constraint: Follower) -> set[int]:
    masked = np.zeros(260, np.float32)
    constraint.mask(masked)
    return {token for token in range(260) if masked[token] == 0}


def write(constraint: Follower, text: str) -> None:
    for byte in text.encode():
        assert byte in allowed(constraint), text
        assert constraint.fitting([byte]) == 1
        constraint.take(byte)


MARKS = {
    "": ("<tool_call>", "</tool_call>"), "hermes": ("<tool_call>", "</tool_call>"), "granite": ("<|tool_call|>", ""),
    "qwen-xml": ("<tool_call>", "\n</tool_call>"), "nemotron": ("<TOOLCALL>", "</TOOLCALL>"),
}  # fmt: skip
"""By the form of calls: the texts that open and close them. The empty form is one call in that of Hermes, as a whole."""


@pytest.mark.parametrize("form", ["hermes", "granite", "qwen-xml"])
def test_a_text_is_free_up_to_a_call_and_after_it(grammars: Grammars, form: str) -> None:
    one = follower(grammars, form, FUNCTIONS)
    call = {
        "hermes": '\n{"name": "clock", "arguments": {}}\n</tool_call>',
        "granite": '[{"name": "clock", "arguments": {}}, {"name": "weather", "arguments": {"place": "x"}}]',
        "qwen-xml": "\n<function=clock>\n</function>\n</tool_call>",
    }[form]
    for _ in range(3):
        write(one, f"anything, <b>, {MARKS[form][0]}")
        assert END not in allowed(one)
        assert one.fitting(list(call.replace("clock", "cloak").encode())) == call.index("clock") + 3
        write(one, call)
        assert len(allowed(one)) == 260, "anything may come, the end too"
    assert one.fitting([1, 2, END, 3]) == 3


@pytest.mark.parametrize("after", ["", "</think>"])
def test_a_mark_in_the_reasoning_begins_no_call(grammars: Grammars, after: str) -> None:
    """The prompt or the answer has begun the reasoning."""
    one = follower(grammars, "hermes", FUNCTIONS, after)
    write(one, ("" if after else "<think>") + "I could write <tool_call> now")
    assert len(allowed(one)) == 260
    write(one, "</think>\n\n<tool_call>")
    assert allowed(one) == {*b"\n{"}


def test_one_call_is_the_whole_text(grammars: Grammars) -> None:
    for single, ends in ((True, {END}), (False, {END, *b"\n<"})):
        one = follower(grammars, "", FUNCTIONS, "</think>", single=single)
        write(one, '<tool_call></think>\n\n<tool_call>{"name": "clock", "arguments": {}}')
        assert allowed(one) == set(b"\n<")
        write(one, "</tool_call>")
        assert allowed(one) == ends


@pytest.fixture(scope="module")
def wide() -> Tokenizer:
    """Bytes, and tokens that hold the mark of a call and more."""
    alphabet = bytes_to_unicode()
    vocab, merges = {text: byte for byte, text in alphabet.items()}, list[tuple[str, str]]()
    for word in ("<tool_call>", "<tool_call>{", "<tool_call>x", "</think><tool_call>"):
        spelled = [alphabet[each] for each in word.encode()]
        for end in range(2, len(spelled) + 1):
            if "".join(spelled[:end]) not in vocab:
                merges.append(("".join(spelled[: end - 1]), spelled[end - 1]))
                vocab["".join(spelled[:end])] = len(vocab)
    return Tokenizer(ByteLevelBPETokenizer(vocab, merges).to_str().encode())


@pytest.mark.parametrize(
    ("said", "begins"), [("<tool_call>", True), ("<tool_call>{", True), ("<tool_call>x", False), ("</think><tool_call>", True)]
)
def test_a_token_may_have_the_opening_and_more(wide: Tokenizer, said: str, begins: bool) -> None:
    """Text after the opening in the same token counts if the call allows it; otherwise there is no call."""
    ids = {wide.decode([each]): each for each in range(wide.info.vocab_size)}
    size = wide.info.vocab_size + 1
    after = "</think>" if said.startswith("</think>") else ""
    one = Grammars(wide, size, [size - 1]).calls(TOOLS, AnswerFormat.named("hermes")).follow(after)
    one.take(ids["y"])
    one.take(ids[said])
    logits = np.zeros(size, np.float32)
    one.mask(logits)
    expected = {'"'} if said.endswith("{") else {"\n", "{"}
    assert {wide.decode([each]) for each in np.flatnonzero(logits == 0)} == expected if begins else (logits == 0).all()


CALLS: list[tuple[str, list[Function], str]] = [
    ("hermes", FUNCTIONS, '\n{"name": "weather", "arguments": {"place": "here", "days": 3}}'),
    ("hermes", FUNCTIONS, '{"name": "weather", "arguments": {"place": |3'),
    ("", FUNCTIONS, '{"name": "w|hether'),
    ("", [*FUNCTIONS, NESTED], '{"name": "draw", "arguments": {"at": [1, 2]}}'),
    ("hermes", [*FUNCTIONS, NESTED], '{"name": "draw", "arguments": {"at": [1|]'),
    ("granite", [*FUNCTIONS, NESTED], '[{"name": "draw", "arguments": {"at": [1, 2]}}, {"name": "clock", "arguments": {}}]'),
    ("nemotron", FUNCTIONS, '[{"name": "clock", "arguments": {}}]'),
    ("nemotron", FUNCTIONS, "[|]"),
    ("hermes", FUNCTIONS, '\n{"name": "clock", "arguments": {}}\n{"name": "clo|ak"'),
    ("hermes", FUNCTIONS, '{"name": "clock", "arguments": {}}\n{"name": "weather", "arguments": {"place": "x"}}\n'),
    ("granite", FUNCTIONS, '[{"name": "clock", "arguments": {}}, {"name": "w|hether'),
    ("qwen-xml", FUNCTIONS, "\n<function=clock>\n</function>\n<function=clo|ak>"),
    ("qwen-xml", [NESTED], '<function=draw>\n<parameter=at>\n[1, |"a" b'),
    ("qwen-xml", FUNCTIONS, "\n<function=weather>\n<parameter=place>\n<a>\n</parameter>\n</function>"),
    ("qwen-xml", FUNCTIONS, "<function=weather>\n<parameter=place>\nx\n</parameter>\n<parameter=days>\n|some"),
    ("qwen-xml", FUNCTIONS, "<function=weather>\n<parameter=|days>"),
    (
        "qwen-xml",
        [NESTED],
        "<function=draw>\n<parameter=at>\n[1, 2]\n</parameter>\n<parameter=colour>\nred\n</parameter>\n</function>",
    ),
    ("qwen-xml", [NESTED], "<function=draw>\n<parameter=at>\n[1, 2]\n</parameter>\n<parameter=colour>\n|green"),
    ("hermes", [*FUNCTIONS, TREE], '{"name": "grow", "arguments": {"label": "a", "child": {"child": {"label": "b"}}}}'),
    ("hermes", [*FUNCTIONS, TREE], '{"name": "grow", "arguments": {"child": {"|name": "grow", "arguments": {}}}}'),
    ("hermes", [TREE], '{"name": "grow", "arguments": {"also": "abc|d'),
    ("hermes", [TREE], '{"name": "grow", "arguments": {"colour": "red", "mark": {"$ref": "#/$defs/data"}}}'),
    ("hermes", [TREE], '{"name": "grow", "arguments": {"child": {"colour": "|green'),
    ("granite", [NESTED, TREE], '[{"name": "grow", "arguments": {"child": {"colour": "blue"}}}]'),
    ("qwen-xml", [TREE], '<function=grow>\n<parameter=child>\n{"child": {"label": "b"}}\n</parameter>\n</function>'),
    ("qwen-xml", [TREE], '<function=grow>\n<parameter=child>\n{"|name": "grow"}'),
    ("qwen-xml", [TREE], "<function=grow>\n<parameter=colour>\nred\n</parameter>\n</function>"),
    ("qwen-xml", [TREE], "<function=grow>\n<parameter=colour>\n|green"),
]
"""A form, its tools, and a call; after a bar text that does not fit."""


@pytest.mark.parametrize(("form", "functions", "text"), CALLS)
def test_calls_fit_as_far_as_their_schema_does(grammars: Grammars, form: str, functions: list[Function], text: str) -> None:
    one, (fits, bar, wrong) = follower(grammars, form, functions), text.partition("|")
    write(one, MARKS[form][0])
    fitting = one.fitting(list((fits + wrong).encode()))
    assert fitting == len(fits)
    write(one, fits if bar else fits + MARKS[form][1])
    assert (END in allowed(one)) == (not bar)


ODD: list[tuple[Any, str]] = [
    ({"properties": [1]}, "object"), ({"properties": {"a": {"type": "nonsense"}}}, "nonsense"),
    ({"properties": {"a": {"$ref": "#/$defs/none"}}}, "leads nowhere"),
    ({"properties": {"a": {"$ref": "other.json#/a"}}}, "is not one inside the schema"),
    ({"properties": {"a": {"$ref": 3}}}, "is not a string"),
    ({"properties": {"a": {"type": "array", "uniqueItems": True}}}, "uniqueItems"),
]  # fmt: skip
"""Parameters of a tool that no grammar can say, and what is said of them."""


@pytest.mark.parametrize("form", ["", "{# <function= #}"])
def test_parameters_that_cannot_be_followed_are_refused_by_the_tools_name(form: str) -> None:
    """Refuse them for calls that are asked for and for others; a tool that says it is not strict has free calls."""
    with speaker(lambda prompt: "Nothing to call.", TEMPLATE + form) as one:
        for parameters, says in ODD:
            for choice in ("auto", "required"):
                odd: Any = {"type": "function", "function": {"name": "odd", "parameters": parameters}}
                with pytest.raises(openai.BadRequestError, match=f"in the parameters of odd, .*{says}"):
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


def test_references_cannot_make_a_schema_grow_without_end(grammars: Grammars) -> None:
    deep: Any = {"properties": {f"p{i}": {"type": "null"} for i in range(2000)}}
    for i in range(100):
        deep = {"properties": {"in": deep, "up": {"$ref": "#" + "/properties/in" * i}}}
    with pytest.raises(GrammarError, match="nested too deeply"):
        follower(grammars, "hermes", [Function(name="deep", parameters=deep)])
    chain = {f"d{i}": {"items": {"$ref": f"#/$defs/d{i + 1}"}} for i in range(3000)}
    parameters = {"properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": {**chain, "d3000": {}}}
    assert follower(grammars, "qwen-xml", [Function(name="long", parameters=parameters)])


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
        model="babble", messages=user("again"), max_tokens=100, response_format=Answer, temperature=1.5, seed=2
    )
    if parsed.choices[0].finish_reason == "stop":
        assert isinstance(parsed.choices[0].message.parsed, Answer)


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
