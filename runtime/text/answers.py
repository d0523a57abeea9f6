"""Split a model's answer into content, reasoning and calls of tools while it comes, by the format of the model's family."""

from __future__ import annotations

import ast
import json
import logging
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol
from uuid import uuid4

from hybridge.runtime.core.statistics import Origin
from hybridge.runtime.core.tokenizer import TextStream, Tokenizer
from hybridge.runtime.text.response_parser import ResponseParser

log = logging.getLogger(__name__)

CONSTANTS = {"true": True, "false": False, "null": None}
"""JSON's constants, which models write in calls that are otherwise Python."""
LONGEST_CALL = 1 << 20
WORDS = re.compile(r"[\w\s.,;:!?'\"()-]+|.", re.DOTALL)
"""Words with the space around them, or a single character that may end a call."""
REASONING = ("reasoning_content", "thinking", "reasoning")
"""Names of the reasoning field in response templates."""

ResponseTemplate = Mapping[str, Any]
"""Fields of a message, and the texts that open and close them; see ``response_parser.py``."""


class TokenDecoder(Protocol):
    """The part of a tokenizer that turns tokens into text."""

    def decode(self, ids: Sequence[int], /) -> str: ...
    def stream(self, stop: Sequence[str] = (), /) -> TextStream: ...


@dataclass(frozen=True)
class Call:
    """A call of a tool. arguments: JSON."""

    name: str
    arguments: str
    id: str = field(default_factory=lambda: f"call_{uuid4().hex[:24]}")

    def to_dict(self) -> dict[str, Any]:
        """Return the call as OpenAI's API writes it."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


@dataclass(frozen=True)
class Delta:
    """A piece of an answer: content, reasoning, or a call. origin: who proposed its tokens, if a client asked for that."""

    content: str = ""
    reasoning: str = ""
    call: Call | None = None
    origin: Origin | None = None


class Parser(Protocol):
    """Reads an answer, as ``ResponseParser`` does: events open a field, add text to it, or close it with a value."""

    initial_events: list[dict[str, Any]]

    def feed(self, text: str) -> list[dict[str, Any]]: ...
    def finish(self) -> list[dict[str, Any]]: ...


class Answer:
    """The parts of one answer so far: content, reasoning and calls. Without a parser all text is content."""

    def __init__(self, prompt: str = "", parser: Callable[[str], Parser] | None = None) -> None:
        """Begin the answer to a prompt.

        Args:
            prompt: rendered text; it may have begun the answer, such as with an opening tag for reasoning.
            parser: makes a parser from the prompt; what it raises is raised here.
        """
        self.content, self.reasoning = "", ""
        self.calls: list[Call] = []
        self._make = parser
        self._parser = parser(prompt) if parser is not None else None
        self._raw, self._spaces, self._unreadable = "", "", False
        opened = [each for each in (self._parser.initial_events if self._parser else ()) if each["type"] == "region_open"]
        self._regions = len(opened)
        self._calling = any(each["field"] == "tool_calls" for each in opened)
        self._begun = not opened

    def feed(self, text: str) -> Iterator[Delta]:
        """Yield what ``text`` adds."""
        yield from merged(self._deltas(text))

    def _deltas(self, text: str) -> Iterator[Delta]:
        """Feed the parser single characters inside a call, and whole words elsewhere, which is far faster.

        Single characters limit what is lost if a region turns out not to be a call.
        """
        if self._parser is None:
            yield from self._say(text)
            return
        for piece in WORDS.findall(text):
            for part in piece if self._calling else (piece,):
                yield from self._read(part)

    def finish(self) -> Iterator[Delta]:
        """Yield what is left once the text has ended."""
        if self._parser is not None:
            yield from self._read(None)

    def message(self) -> dict[str, Any]:
        """Return the message as a client sends it back, reasoning included."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.calls:
            message["tool_calls"] = [call.to_dict() for call in self.calls]
        return message

    def _read(self, text: str | None) -> Iterator[Delta]:
        """Yield what more text adds, or the end if it is None; a region that cannot be parsed becomes content."""
        assert self._parser is not None
        assert self._make is not None
        try:
            events = self._parser.finish() if text is None else self._parser.feed(text)
        except (ValueError, KeyError, TypeError, RecursionError):
            self._parser, self._calling = self._make(""), False
            yield from self._unread()
            return
        for event in events:
            yield from self._event(event)

    def _event(self, event: dict[str, Any]) -> Iterator[Delta]:
        name, kind = event["field"], event["type"]
        before, self._regions = self._regions, self._regions + (kind == "region_open")
        if name == "tool_calls":
            self._calling = kind != "region_close"
            self._raw = "" if kind == "region_open" else self._raw + event.get("text", "")
            if kind == "region_close":
                yield from self._call(event["value"])
        elif kind == "region_open":
            first = before == 0 and name not in REASONING
            self._begun, self._spaces, self._unreadable = first or self._unreadable, "", False
        elif kind == "region_chunk":
            yield from self._trimmed(event["text"], self._think if name in REASONING else self._say)

    def _trimmed(self, text: str, add: Callable[[str], Iterator[Delta]]) -> Iterator[Delta]:
        """Drop the whitespace between one part and the next."""
        text = self._spaces + text
        text = text if self._begun else text.lstrip()
        self._spaces = text[len(text.rstrip()) :]
        if said := text.rstrip():
            self._begun = True
            yield from add(said)

    def _call(self, value: Any) -> Iterator[Delta]:
        try:
            calls = list(calls_in(value))
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            yield from self._unread()
            return
        self._raw = ""
        for call in calls:
            self.calls.append(call)
            yield Delta(call=call)

    def _unread(self) -> Iterator[Delta]:
        raw, self._raw, self._unreadable = self._raw, "", True
        yield from self._say(raw.strip())

    def _say(self, text: str) -> Iterator[Delta]:
        if text:
            self.content += text
            yield Delta(content=text)

    def _think(self, text: str) -> Iterator[Delta]:
        self.reasoning += text
        yield Delta(reasoning=text)


def split_text(answer: Answer, text: str, *, ended: bool = False) -> tuple[str, str]:
    """Return what ``text``, and the end of the answer if it is its last, adds to content and to reasoning."""
    deltas = [*answer.feed(text), *(answer.finish() if ended else ())]
    return "".join(each.content for each in deltas), "".join(each.reasoning for each in deltas)


def merged(deltas: Iterable[Delta]) -> Iterator[Delta]:
    """Yield deltas, joining neighbours of the same kind of text."""
    last: Delta | None = None
    for each in deltas:
        if last is not None and last.call is each.call is None and bool(last.content) == bool(each.content):
            last = replace(last, content=last.content + each.content, reasoning=last.reasoning + each.reasoning)
            continue
        if last is not None:
            yield last
        last = each
    if last is not None:
        yield last


@dataclass(frozen=True)
class AnswerFormat:
    """The format in which a family of models writes calls and reasoning.

    marker: a text by which the family's chat templates or vocabularies are recognized. response: the template that
    ``ResponseParser`` reads. call, content: texts that precede the JSON of a call, and content.
    """

    name: str
    marker: str
    response: ResponseTemplate
    call: str = ""
    content: str = ""

    @property
    def has_calls(self) -> bool:
        """Return whether calls can be distinguished from text."""
        return "tool_calls" in self.response["fields"]

    def answer(self, prompt: str, tools: Sequence[Mapping[str, Any]]) -> Answer:
        """Return an empty answer to ``prompt``, ready to be fed. Without tools, text that looks like a call is content."""
        template = self.response if tools else without_calls(self.response)
        return Answer(prompt, lambda before: ResponseParser(template, before, tools))

    @property
    def looked_for(self) -> str:
        """Return a text that has all special tokens in it that the parser looks for."""
        return json.dumps(self.response).replace("\\", "")

    def lead(self, prompt: str, *, call: bool) -> str:
        """Return the text that leads from ``prompt`` directly to a call or to content, closing reasoning that it has begun."""
        close = self.reasoning_end(prompt)
        return (f"\n{close}\n\n" if close else "") + (self.call if call else self.content)

    def reasoning_end(self, prompt: str) -> str:
        """Return the text that ends the reasoning which ``prompt`` has begun, or "" if it has begun none."""
        thinking = None
        for event in ResponseParser(self.response, prompt, []).initial_events:
            is_open = event["type"] != "region_close" and event["field"] in REASONING
            thinking = self.response["fields"][event["field"]] if is_open else None
        close = thinking.get("close", "") if thinking is not None else ""
        return close if isinstance(close, str) else str(close[0])


@dataclass(frozen=True)
class AnswerSplitter:
    """Splits a model's answers.

    decoder: keeps the special tokens that mark parts, which are those in ``shown``. answer: begins the answer to a prompt.
    """

    decoder: TokenDecoder
    answer: Callable[[str], Answer]
    shown: str = ""


def unsplit(decoder: TokenDecoder) -> AnswerSplitter:
    """Return a splitter that takes all text as content."""
    return AnswerSplitter(decoder, lambda prompt: Answer())


def with_general_calls(form: AnswerFormat | None) -> AnswerFormat:
    """Return a format for models without one for calls: JSON in tags, which the prompt explains; reasoning as in ``form``."""
    fields = without_calls(form.response)["fields"] if form is not None else {"content": {"content": "text"}}
    response = {"start_anchor_pattern": BEHIND_THE_PROMPT, "fields": {**fields, "tool_calls": {"repeats": True, **JSON_CALLS}}}
    return AnswerFormat("general", "", response, call="<tool_call>\n", content=form.content if form is not None else "")


def answer_format(own: Any, chat_template: str, tokenizer: Tokenizer) -> AnswerFormat | None:
    """Return the format by the tokenizer's ``own`` response template, or of its family; None if neither is known."""
    if isinstance(own, dict) and _can_be_read(own):
        return AnswerFormat("own", "", own)
    written = (each for each in FORMATS if each.marker in chat_template)
    known = (each for each in FORMATS if tokenizer.token_to_id(each.marker) is not None)
    return next(written, None) or next(known, None)


def _can_be_read(template: ResponseTemplate) -> bool:
    try:
        ResponseParser(template, "", [])
    except (ValueError, TypeError, KeyError) as error:
        log.warning("the tokenizer's response_template cannot be read (%s); the form of its chat template is used", error)
        return False
    return True


def without_calls(template: ResponseTemplate) -> ResponseTemplate:
    """Return the template without calls, for requests without tools: text that looks like a call is content."""
    fields = {name: field for name, field in template["fields"].items() if name != "tool_calls"}
    return {**template, "fields": fields} if fields else template


def decoder_of(form: AnswerFormat | None, tokenizer: Tokenizer) -> TokenDecoder:
    """Return a decoder that drops special tokens, except those that the format's parser looks for."""
    looked_for = form.looked_for if form is not None else ""
    special = tokenizer.added_tokens(special=True)
    shown = frozenset(token for token, text in special.items() if text in looked_for)
    return ShownTokens(tokenizer, shown) if shown else tokenizer


class ShownTokens:
    """Decodes without special tokens, except those in ``shown``."""

    def __init__(self, tokenizer: Tokenizer, shown: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._hidden = tokenizer.added_tokens(special=True).keys() - shown

    def decode(self, ids: Sequence[int], /) -> str:
        """Return the text of tokens."""
        return self._tokenizer.decode([token for token in ids if token not in self._hidden], skip_special_tokens=False)

    def stream(self, stop: Sequence[str] = ()) -> ShownStream:
        """Return the text of tokens that come one after the other, up to a stop string."""
        return ShownStream(self._tokenizer, self._hidden, stop)


class ShownStream(TextStream):
    """Streams text without the tokens in ``hidden``."""

    def __init__(self, tokenizer: Tokenizer, hidden: Collection[int], stop: Sequence[str] = ()) -> None:
        super().__init__(tokenizer, skip_special_tokens=False, stop=stop)
        self._hidden = hidden

    def push(self, token: int) -> str:
        """Return what a token adds to the text."""
        return "" if token in self._hidden else super().push(token)


# The formats of families of models


CALL = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}
GRANITE = "<|start_of_role|>assistant<|end_of_role|>"
CHATML = ["<|im_start|>assistant\n", "<|im_start|>assistant"]
THINKING = {"open": "<think>", "close": "</think>"}


def _format(name: str, marker: str, anchor: Any, fields: Mapping[str, Any], call: str = "", content: str = "") -> AnswerFormat:
    return AnswerFormat(name, marker, {"start_anchor": anchor, "fields": fields}, call, content)


def _fields(calls: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
    fields = {"reasoning_content": THINKING, "content": {"content": "text"}}
    return fields if calls is None else {**fields, "tool_calls": {"repeats": True, **calls}}


XML_CALLS = {
    "open_pattern": r"\s*<tool_call>\s*<function=(?P<name>[^>\n]+)>",
    "close_pattern": r"</function>\s*(?:</tool_call>|\Z)",
    "content": "xml-inline",
    "content_args": {"tag_pattern": r"<parameter=(?P<key>[^>\n]+)>\n?(?P<value>.*?)\n?</parameter>"},
    "transform": CALL,
}
JSON_CALLS = {
    "open_pattern": r"\s*<tool_call>",
    "close": "</tool_call>",
    "content": "json",
    "transform": {"type": "function", "function": "{content}"},
}
PYTHON_CALLS = {"open_pattern": r"\s*<\|tool_call_start\|>", "close": "<|tool_call_end|>", "content": "text"}
GRANITE_CALLS = {"open_pattern": r"\s*<\|tool_call\|>", "close": "<|end_of_text|>", "content": "json"}
HARMONY = {
    "reasoning_content": {
        "open": [f"{lead}<|channel|>analysis<|message|>" for lead in ("", "<|start|>assistant")], "close": "<|end|>",
        "repeats": True, "join": "\n",
    },
    "tool_calls": {
        "open_pattern": r"(?:<\|start\|>assistant)?(?: to=functions\.\S+?)?<\|channel\|>(?:commentary|analysis) to=functions\."
        r"(?P<name>[\w.-]+)\s*(?:<\|constrain\|>)?\s*(?:json)?<\|message\|>",
        "close": "<|call|>", "repeats": True, "content": "json", "transform": CALL,
    },
    "content": {
        "open": [
            f"{lead}<|channel|>{name}<|message|>" for lead in ("", "<|start|>assistant") for name in ("final", "commentary")
        ],
        "close": ["<|end|>", "<|return|>"],
        "repeats": True, "join": "\n",
    },
}  # fmt: skip

FORMATS = (
    _format(
        "harmony", "<|channel|>", "<|start|>assistant", HARMONY,
        call="<|channel|>commentary <|constrain|>json<|message|>", content="<|channel|>final<|message|>",
    ),
    _format("qwen-xml", "<function=", CHATML, _fields(XML_CALLS), call="<tool_call>\n"),
    _format("lfm2", "<|tool_call_start|>", CHATML, _fields(PYTHON_CALLS), call="<|tool_call_start|>["),
    _format("granite", "<|tool_call|>", GRANITE, _fields(GRANITE_CALLS), call="<|tool_call|>["),
    _format("hermes", "<tool_call>", [*CHATML, GRANITE], _fields(JSON_CALLS), call="<tool_call>\n"),
    _format("thinking", "</think>", CHATML, _fields()),
)  # fmt: skip
"""Tried in this order: the first marker in the chat template wins, or else the first one that is a token."""


BEHIND_THE_PROMPT = r"\A(?:[\s\S]*(?=<think>\s*\Z)|[\s\S]*)"
"""Match a prompt up to the reasoning that it may have begun at its end."""


# Calls inside a parsed region


def calls_in(value: Any) -> Iterator[Call]:
    """Yield the calls that a parsed region holds: one of OpenAI's form, a name with arguments, a list, or Python's calls.

    Raises ValueError or SyntaxError for anything else.
    """
    if isinstance(value, str):
        value = list(python_calls(value))
    for each in value if isinstance(value, list) else [value]:
        function = each.get("function", each) if isinstance(each, dict) else None
        if not isinstance(function, dict) or not isinstance(name := function.get("name"), str) or not name:
            raise ValueError("it has no name")
        arguments = function.get("arguments", function.get("parameters", {}))
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        if not isinstance(json.loads(text or "{}"), dict):
            raise ValueError("its arguments are no object")
        yield Call(name, text or "{}")


def python_calls(text: str) -> Iterator[dict[str, Any]]:
    """Yield calls such as ``[weather(place="here"), clock()]``, parsed and never run. Raises ValueError or SyntaxError."""
    if len(text) > LONGEST_CALL:
        raise ValueError("it is too long")
    tree = ast.parse(text.strip(), mode="eval").body
    for call in tree.elts if isinstance(tree, ast.List) else [tree]:
        if not isinstance(call, ast.Call) or call.args or any(each.arg is None for each in call.keywords):
            raise ValueError("it is no call by names")
        arguments = {each.arg: ast.literal_eval(_Json().visit(each.value)) for each in call.keywords}
        yield {"name": ast.unparse(call.func), "arguments": arguments}


class _Json(ast.NodeTransformer):
    """Replaces JSON's constants by Python's."""

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.copy_location(ast.Constant(CONSTANTS[node.id]), node) if node.id in CONSTANTS else node


class OneCall:
    """A ``Parser`` of a text that is a single call: JSON with a name and arguments."""

    def __init__(self) -> None:
        self.initial_events: list[dict[str, Any]] = [{"type": "region_open", "field": "tool_calls"}]
        self._text = ""

    def feed(self, text: str) -> list[dict[str, Any]]:
        """Collect the text; it is parsed at the end."""
        self._text += text
        return [{"type": "region_chunk", "field": "tool_calls", "text": text}]

    def finish(self) -> list[dict[str, Any]]:
        """Return the call. Raises ValueError if the text is not JSON."""
        return [{"type": "region_close", "field": "tool_calls", "value": json.loads(self._text)}]
