"""What a model says, taken apart while it comes: content, reasoning, and calls of tools."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol
from uuid import uuid4

from tokenizers import Tokenizer

from hybridge.runtime.core.statistics import Origin

CONSTANTS = {"true": True, "false": False, "null": None}
"""Names of JSON in what is otherwise Python."""
LONGEST_CALL = 1 << 20
WORDS = re.compile(r"[\w\s.,;:!?'\"()-]+|.", re.DOTALL)
"""Words and what stands between them, and single characters of which some end a call."""
REASONING = ("reasoning_content", "thinking", "reasoning")
"""What response templates call it."""


@dataclass(frozen=True)
class Call:
    """A call of a tool. arguments: JSON."""

    name: str
    arguments: str
    id: str = field(default_factory=lambda: f"call_{uuid4().hex[:24]}")

    def to_dict(self) -> dict[str, Any]:
        """Return it in OpenAI's form."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


@dataclass(frozen=True)
class Delta:
    """A piece of an answer: of its content or its reasoning, or a call. origin: where its tokens come from, where asked."""

    content: str = ""
    reasoning: str = ""
    call: Call | None = None
    origin: Origin | None = None


class Parser(Protocol):
    """A ``ResponseParser``: its events open a field of the message, add text to it, or close it with its value."""

    initial_events: list[dict[str, Any]]

    def feed(self, text: str) -> list[dict[str, Any]]: ...
    def finish(self) -> list[dict[str, Any]]: ...


class Answer:
    """The parts of one answer so far. Without a parser all of it is content."""

    def __init__(self, prompt: str = "", parser: Callable[[str], Parser] | None = None) -> None:
        """parser: makes one for the answer to a prompt, which may have begun the answer. Raises what that does."""
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
        """Feed the parser character by character where a call may end, and words at once elsewhere, which takes far less.

        So nothing else is lost where a region turns out to be no call.
        """
        if self._parser is None:
            yield from self._say(text)
            return
        for piece in WORDS.findall(text):
            for part in piece if self._calling else (piece,):
                yield from self._read(partial(_fed, text=part))

    def finish(self) -> Iterator[Delta]:
        """Yield what is left once no text will come."""
        if self._parser is not None:
            yield from self._read(lambda parser: parser.finish())

    def message(self) -> dict[str, Any]:
        """Return the message as a client sends it back, with its reasoning."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.calls:
            message["tool_calls"] = [call.to_dict() for call in self.calls]
        return message

    def _read(self, step: Callable[[Parser], list[dict[str, Any]]]) -> Iterator[Delta]:
        """Yield what a step of the parser adds; a region that cannot be read is content."""
        assert self._parser is not None
        assert self._make is not None
        try:
            events = step(self._parser)
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
        """Leave out the space between one part and the next."""
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


def merged(deltas: Iterable[Delta]) -> Iterator[Delta]:
    """Yield deltas, those of text in a row as one."""
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


def _fed(parser: Parser, text: str) -> list[dict[str, Any]]:
    return parser.feed(text)


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
    """Yield calls such as ``[weather(place="here"), clock()]``; nothing of them runs."""
    if len(text) > LONGEST_CALL:
        raise ValueError("it is too long")
    tree = ast.parse(text.strip(), mode="eval").body
    for call in tree.elts if isinstance(tree, ast.List) else [tree]:
        if not isinstance(call, ast.Call) or call.args or any(each.arg is None for each in call.keywords):
            raise ValueError("it is no call by names")
        arguments = {each.arg: ast.literal_eval(_Json().visit(each.value)) for each in call.keywords}
        yield {"name": ast.unparse(call.func), "arguments": arguments}


class _Json(ast.NodeTransformer):
    """JSON's constants as Python's."""

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.copy_location(ast.Constant(CONSTANTS[node.id]), node) if node.id in CONSTANTS else node


class OneCall:
    """Reads a text that is one call, as JSON with a name and arguments; a ``Parser``."""

    def __init__(self) -> None:
        self.initial_events: list[dict[str, Any]] = [{"type": "region_open", "field": "tool_calls"}]
        self._text = ""

    def feed(self, text: str) -> list[dict[str, Any]]:
        """Wait for the rest."""
        self._text += text
        return [{"type": "region_chunk", "field": "tool_calls", "text": text}]

    def finish(self) -> list[dict[str, Any]]:
        """Return the call. Raises ValueError for what is none."""
        return [{"type": "region_close", "field": "tool_calls", "value": json.loads(self._text)}]


class ShownTokens:
    """Decodes without special tokens, but for those that are looked for."""

    def __init__(self, tokenizer: Tokenizer, shown: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder().items()
        self._hidden = {token for token, each in added if each.special} - shown

    def decode(self, ids: Sequence[int], /) -> str:
        """Return the text of tokens."""
        return self._tokenizer.decode([token for token in ids if token not in self._hidden], skip_special_tokens=False)
