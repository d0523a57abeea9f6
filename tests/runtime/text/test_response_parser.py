"""The parser of answers by response templates, against transformers' own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from transformers.utils.chat_parsing import ResponseParser as Reference

from hybridge.runtime.text.response_parser import FIELD_KEYS, TEMPLATE_KEYS, ResponseParser

Template = dict[str, Any]
Events = list[dict[str, Any]]
REFUSALS = (ValueError, KeyError, TypeError, AttributeError, RecursionError)

TOOLS = [
    {"type": "function", "function": {"name": "f", "parameters": {"properties": {
        "i": {"type": "integer"}, "n": {"type": ["number", "null"]}, "b": {"type": "boolean"}, "s": {"type": "string"},
        "o": {"anyOf": [{"type": "object"}, {"type": "array"}]}, "m": {"type": "number", "nullable": True}, "x": {}, "y": True,
    }}}},
    {"name": "g", "parameters": None},
    {"type": "function"},
]  # fmt: skip
CALL = {"function": {"name": "{name}", "arguments": "{content}"}}
TAGS = {"tag_pattern": r"<(?P<key>\w+)=(?P<value>.*?)>", "merge_duplicates": True}
OWN: dict[str, Template] = {
    "json": {"start_anchor": ["A:", "A:B"], "fields": {
        "call": {"open": ["<c", "<c>"], "close": "</c>", "content": "json", "repeats": True,
                 "content_args": {"string_delims": [["'", "'"], ["“", "”"]], "unquoted_keys": True}},
        "said": {"close": "\n"},
    }},
    "calls": {"start_anchor": "A:", "defaults": {"role": "assistant"}, "fields": {
        "call": {"open_pattern": r"(?P<name>[fg])\(", "close": ")", "content": "xml-inline", "content_args": TAGS,
                 "repeats": True, "transform": CALL},
    }},
    "list": {"start_anchor_pattern": r"A+:", "fields": {
        "call": {"open": "[", "close_pattern": r"\](?=\n|\Z)|$", "content": "json", "optional": False,
                 "transform": {"a": ["{content}", "{a.b}", 3]}, "transform_each": True},
        "said": {},
    }},
    "lines": {"start_anchor": "A:", "fields": {
        "facts": {"open": "{", "close": "}", "content": "kv-lines",
                  "content_args": {"kv_sep": "=", "value_parser": {"name": "json", "args": {"allow_non_json": True}}}},
        "thought": {"open": "<t>", "close": "</t>", "repeats": True, "join": "|", "content_args": {"strip": False}},
        "count": {"open": "#", "close_pattern": r"\D", "content": "int"},
        "sure": {"open": "?", "close": "!", "content": "bool"},
        "share": {"open": "%", "close": "%", "content": "float", "join": ",", "repeats": True},
    }},
    "alike": {"start_anchor": "A:", "fields": {
        "a": {"open": ["<c", ";"], "close": "."}, "b": {"open_pattern": "<c>+", "close": "."},
        "c": {"open": ";;", "close": ";"}, "said": {"close": ";"},
    }},
    "nothing": {"start_anchor": "A:", "fields": {"said": {"close_pattern": "(?=[;:])"}, "a": {"open": ":", "close": "."}}},
}  # fmt: skip
WORDS = [
    *(
        "A:",
        "AA:",
        "B",
        "<",
        "<c",
        ">",
        "</c>",
        "c>",
        "a",
        "{",
        "}",
        "[",
        "]",
        "'",
        "“",
        "”",
        ":",
        ",",
        '"',
        "1",
        "2.0",
        " ",
        "\n",
    ),
    *(
        "f(",
        "g(",
        ")",
        "<i=3.0>",
        "<i=4>",
        "<n=null>",
        "<n=1e3>",
        "<b=True>",
        "<o=[1]>",
        "<m=None>",
        "<m=nan>",
        "<s=1>",
        "<x=1>",
    ),
    *(
        "<t>",
        "</t>",
        "#",
        "?",
        "!",
        "%",
        "=",
        "x=1\n",
        'y={"a": 2}',
        '{"a": {"b": 1}}',
        '[{"a": {"b": 1}}]',
        "[1]",
        "é",
        "true",
    ),
    *("f(<i=3.0><i=4>)", "f(<n=null><m=None><b=True><s=1>)", "g(<i=3>)f(<n=1e3><m=nan><n=2.0>)", "f(<o=[1]><x=1><i=x><o={}>)"),
    *(";", ".", ";;", "<c>>", "[]", "[1]\n", '["b"]', "</c>\n", "f(<b=maybe><b=0><i=1e400><n=3><n=3.0><y=1>)"),
]


def told(parser: Any, pieces: Sequence[str], end: Callable[[], Events]) -> list[Events | str]:
    """The events of each piece, up to the first refusal."""
    found: list[Events | str] = [parser.initial_events]
    try:
        found += [parser.feed(piece) for piece in pieces]
        found.append(end())
    except REFUSALS:
        found.append("refused")
    return found


def reference(template: Template, prompt: str, tools: list[Any], pieces: Sequence[str]) -> Any:
    try:
        parser = Reference(template, prefix=prompt, tools=tools)
    except REFUSALS:
        return "refused"
    found = told(parser, pieces, lambda: parser.finalize()[1])
    return [
        [{name: value for name, value in event.items() if name != "dirty"} for event in each]
        if isinstance(each, list)
        else each
        for each in found
    ]


def ours(template: Template, prompt: str, tools: list[Any], pieces: Sequence[str]) -> Any:
    try:
        parser = ResponseParser(template, prompt, tools)
    except REFUSALS:
        return "refused"
    return told(parser, pieces, parser.finish)


@pytest.mark.parametrize("name", OWN)
def test_events_are_those_of_transformers(name: str) -> None:
    texts = st.lists(st.sampled_from(WORDS), max_size=14)

    @settings(max_examples=300)
    @given(prompt=texts, said=texts, cuts=st.randoms(use_true_random=False), offered=st.booleans())
    def check(prompt: list[str], said: list[str], cuts: Any, offered: bool) -> None:
        text, pieces = "".join(said), list[str]()
        while text:
            size = cuts.choice([1, 1, 2, 3, 8, 40])
            pieces, text = [*pieces, text[:size]], text[size:]
        arguments = (OWN[name], "".join(prompt), TOOLS if offered else [], pieces)
        assert repr(ours(*arguments)) == repr(reference(*arguments))  # NaN is not equal to itself

    check()


VALUES = [None, 1, "", "a", [], ["a", ""], ["a", "ab"], {}, True, "(", "(?P<x>a)", "json", "{content}", "a{content}", ["{x}"]]


@settings(max_examples=500)
@given(
    name=st.sampled_from(sorted(OWN)), key=st.sampled_from(sorted({*TEMPLATE_KEYS, "nonsense"})),
    part=st.sampled_from(sorted({*FIELD_KEYS, "nonsense"} - {"content_args"})),
    value=st.sampled_from(VALUES), inside=st.booleans(),
)  # fmt: skip
def test_what_is_no_template_is_refused_as_transformers_does(name: str, key: str, part: str, value: Any, inside: bool) -> None:
    template = dict(OWN[name])
    if inside:
        first, *rest = template["fields"].items()
        template["fields"] = {first[0]: {**first[1], part: value}, **dict(rest)}
    else:
        template[key] = value
    pieces = ["A:[", "]<t>", "f(", ")"]
    assert (ours(template, "", [], []) == "refused") == (reference(template, "", [], []) == "refused")
    assert repr(ours(template, "", [], pieces)) == repr(reference(template, "", [], pieces))


@pytest.mark.parametrize("field", [{"open": "<", "content_args": "x"}, {"open": "<", "content_args": {"tag_pattern": "("}}])
def test_what_no_answer_could_be_read_by_is_refused_at_once(field: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"content_args|regular expression"):
        ResponseParser({"start_anchor": "x", "fields": {"a": field}}, "")


def test_a_template_that_opens_and_closes_on_nothing_ends() -> None:
    """transformers' own never does."""
    parser = ResponseParser({"start_anchor": "x", "fields": {"a": {"open_pattern": "(?=b)", "close_pattern": "(?=b)"}}}, "")
    with pytest.raises(ValueError, match="again and again"):
        parser.feed("abc")
