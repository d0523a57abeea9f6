"""Parse an answer by a response template, which says what opens and closes each field of a message.

A tokenizer's ``response_template`` is transformers' format (``transformers.utils.chat_parsing``); this reads it without
transformers, in pieces, and gives the same events (tests/runtime/text/test_response_parser.py compares them).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import regex

Event = dict[str, Any]
"""``region_open`` or ``region_close`` of a ``field``, which has its ``value``, or ``region_chunk`` with its ``text``."""
Args = Mapping[str, Any]
TEMPLATE_KEYS = {"version", "defaults", "fields", "start_anchor", "start_anchor_pattern"}
FIELD_KEYS = {
    *("open", "open_pattern", "close", "close_pattern", "content", "content_args"),
    *("repeats", "join", "optional", "transform", "transform_each"),
}
PLACEHOLDER = regex.compile(r"\{(\w+(?:\.\w+)*)\}")
KEPT = "\x01{}\x02"
"""Placeholder of a string while the JSON around it is mended."""


@dataclass(frozen=True)
class Delimiter:
    """Opens or closes a field. is_final: more text cannot change a match at the end of the text."""

    pattern: Any
    is_final: bool

    @classmethod
    def of(cls, spec: Mapping[str, Any], key: str) -> Delimiter | None:
        """Read ``key``, a text or a list of texts, or ``key_pattern``; None without either. Raises ValueError."""
        if key in spec and f"{key}_pattern" in spec:
            raise ValueError(f"{key} and {key}_pattern exclude each other")
        if key in spec:
            texts = [spec[key]] if isinstance(spec[key], str) else spec[key]
            if not isinstance(texts, list) or not texts or not all(isinstance(each, str) and each for each in texts):
                raise ValueError(f"{key} must be a text or a list of texts, none of them empty")
            longest_first = sorted(set(texts), key=len, reverse=True)
            grows = any(one != other and one.startswith(other) for one in texts for other in texts)
            return cls(regex.compile("|".join(map(regex.escape, longest_first)), regex.DOTALL), not grows)
        if f"{key}_pattern" in spec:
            return cls(_compiled(spec[f"{key}_pattern"]), is_final=False)
        return None

    def is_pending(self, match: Any, text: str) -> bool:
        """Return whether more text may change a match in ``text``, or turn it into one."""
        at_end = match.end() == len(text)
        return match.partial or (at_end and (match.start() == match.end() or not self.is_final))


@dataclass(frozen=True)
class Field:
    """A field of the message. opening: None for the field that takes all text outside the others."""

    name: str
    opening: Delimiter | None
    closing: Delimiter | None
    content: str
    args: Args
    join: str | None
    is_needed: bool
    transform: Any
    for_each: bool

    @classmethod
    def of(cls, name: str, spec: Any) -> Field:
        """Read a field's description. Raises ValueError."""
        if not isinstance(spec, Mapping) or not spec.keys() <= FIELD_KEYS:
            raise ValueError(f"the field {name} is no object of {sorted(FIELD_KEYS)}: {spec}")
        opening, closing = Delimiter.of(spec, "open"), Delimiter.of(spec, "close")
        content, join, for_each = spec.get("content", "text"), spec.get("join"), spec.get("transform_each", False)
        if content not in CONTENTS:
            raise ValueError(f"the field {name} has the content {content}, which is none of {sorted(CONTENTS)}")
        if join is not None and not (isinstance(join, str) and spec.get("repeats", False)):
            raise ValueError(f"the field {name} has a join, which is a text and for fields that repeat")
        args, transform = spec.get("content_args", {}), spec.get("transform")
        if not isinstance(args, Mapping):
            raise ValueError(f"the field {name} has content_args that are no object")
        if "tag_pattern" in args:
            _compiled(args["tag_pattern"])
        if not isinstance(for_each, bool) or (for_each and transform is None):
            raise ValueError(f"the field {name} has a transform_each, which is true or false and needs a transform")
        if any(PLACEHOLDER.search(each) and not PLACEHOLDER.fullmatch(each) for each in _texts(transform)):
            raise ValueError(f"the field {name} has a placeholder within a text, which nothing fills in")
        if transform is None and any(each is not None and each.pattern.groupindex for each in (opening, closing)):
            raise ValueError(f"the field {name} captures what only a transform can use")
        return cls(name, opening, closing, content, args, join, not spec.get("optional", True), transform, for_each)

    def value(self, text: str, captures: Args) -> Any:
        """Return the value of the field's text and of what its opening captured. Raises ValueError or KeyError."""
        value = _read(text, self.content, self.args)
        if self.transform is None:
            return value
        if not self.for_each:
            return _filled(self.transform, {**captures, "content": value})
        if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
            raise ValueError(f"{self.name} must be a list of objects")
        return [_filled(self.transform, {**captures, **each}) for each in value]


@dataclass(frozen=True)
class Template:
    """A checked response template. rest: the field that takes all text outside the others, if there is one."""

    fields: Mapping[str, Field]
    rest: Field | None
    anchor: Any
    given: frozenset[str]

    @classmethod
    def of(cls, spec: Any) -> Template:
        """Read a template. Raises ValueError."""
        if not isinstance(spec, Mapping) or spec.get("version", 1) != 1 or not spec.keys() <= TEMPLATE_KEYS:
            raise ValueError("a response template has version 1, defaults, fields and a start_anchor, and nothing else")
        fields, defaults = spec.get("fields"), spec.get("defaults", {})
        if not isinstance(fields, Mapping) or not fields or not isinstance(defaults, Mapping):
            raise ValueError("a response template's fields and defaults are objects, and it has a field")
        read = {name: Field.of(name, each) for name, each in fields.items()}
        rest = [each for each in read.values() if each.opening is None]
        if len(rest) > 1:
            raise ValueError(f"nothing opens {' and '.join(each.name for each in rest)}: one field can be without")
        anchor = Delimiter.of(spec, "start_anchor")
        if anchor is None:
            raise ValueError("a response template needs a start_anchor or a start_anchor_pattern")
        return cls(read, rest[0] if rest else None, anchor.pattern, frozenset(defaults))

    def answer_in(self, prompt: str) -> str:
        """Return the part of the answer that a prompt has begun: all behind its last anchor."""
        ends = [match.end() for match in self.anchor.finditer(prompt)]
        return prompt[ends[-1] :] if ends else prompt


class ResponseParser:
    """Parses one answer piece by piece. initial_events: those of the part that the prompt has begun."""

    def __init__(self, template: Mapping[str, Any], prompt: str, tools: Sequence[Mapping[str, Any]] = ()) -> None:
        """Read the prompt.

        Args:
            template: a response template.
            prompt: rendered text up to the answer, which may have begun it.
            tools: tools that were offered; arguments of their calls get the types of their schemas.

        Raises:
            ValueError: the template is invalid, or a value in the prompt cannot be read.
        """
        self._template = Template.of(template)
        self._properties = dict(chain.from_iterable(map(_properties, tools)))
        self._text, self._at = self._template.answer_in(prompt), 0
        self._closed = set(self._template.given)
        self._field: Field | None = None
        self._is_open, self._body, self._captures = False, "", dict[str, str]()
        self._reset()
        self.initial_events = self._advance(ended=False) if self._text else []

    def feed(self, text: str) -> list[Event]:
        """Return the events of more text. Raises ValueError or KeyError for a value that cannot be read."""
        self._text += text
        return self._advance(ended=False)

    def finish(self) -> list[Event]:
        """Return the events of the end. Raises like ``feed``, and ValueError if a field is missing."""
        events = self._advance(ended=True)
        if missing := [
            each.name for each in self._template.fields.values() if each.is_needed and each.name not in self._closed
        ]:
            raise ValueError(f"the answer has no {' and no '.join(missing)}")
        return events

    def _advance(self, *, ended: bool) -> list[Event]:
        events: list[Event] = []
        stalled = 0
        while True:
            found, free = self._next(ended=ended)
            if found is None:
                self._say(events, free)
                if ended:
                    self._close(events)
                return events
            field, opens, match = found
            stalled = stalled + 1 if match.end() == self._at else 0
            if stalled > 2 * len(self._template.fields):
                raise ValueError(f"{field.name} opens and closes on nothing, again and again")
            self._say(events, match.start())
            self._at = match.end()
            was_open = self._is_open
            self._close(events)
            if opens:
                self._field, self._is_open = field, True
                self._captures = {name: text for name, text in match.groupdict().items() if text is not None}
                events.append({"type": "region_open", "field": field.name})
            elif not was_open and match.start() == match.end():
                return events

    def _next(self, *, ended: bool) -> tuple[tuple[Field, bool, Any] | None, int]:
        """Return the first certain delimiter, and the position up to which the text certainly has none.

        A delimiter comes as its field, True where it opens it, and the match.
        """
        free, certain = len(self._text), list[tuple[Any, tuple[Field, bool, Any]]]()
        for field, delimiter in self._awaited():
            opens = delimiter is field.opening
            match = delimiter.pattern.search(self._text, self._at, partial=not ended)
            if match is None:
                continue
            if not ended and delimiter.is_pending(match, self._text):
                free = min(free, match.start())
            else:
                order = (match.start(), match.start() - match.end(), not opens, field.name)
                certain.append((order, (field, opens, match)))
        _, first = min(certain, key=lambda each: each[0], default=(None, None))
        # A delimiter that more text may complete comes before a certain one behind it.
        return first if first is not None and first[2].start() < free else None, free

    def _awaited(self) -> Iterator[tuple[Field, Delimiter]]:
        """Yield the delimiters that are expected here, each with its field."""
        rest = self._template.rest
        if self._field is None or self._field is rest:
            for field in self._template.fields.values():
                if field.opening is not None:
                    yield field, field.opening
        if self._field is not None and self._field.closing is not None:
            yield self._field, self._field.closing

    def _say(self, events: list[Event], end: int) -> None:
        """Give the text up to ``end`` to the open field, or to the one that takes the rest, if there is one."""
        text, self._at = self._text[self._at : end], max(self._at, end)
        if not text or self._field is None:
            return
        if not self._is_open:
            self._is_open = True
            events.append({"type": "region_open", "field": self._field.name})
        self._body += text
        events.append({"type": "region_chunk", "field": self._field.name, "text": text})

    def _close(self, events: list[Event]) -> None:
        """Read the value of the open field, if one is open, and go back to the one that takes the rest."""
        field = self._field
        if field is not None and self._is_open:
            value = field.value(self._body, self._captures)
            if self._properties:
                value = self._typed(value)
            if field.join is not None and not isinstance(value, str):
                raise ValueError(f"{field.name} is joined, and has something else than a text")
            self._closed.add(field.name)
            events.append({"type": "region_close", "field": field.name, "value": value})
        self._reset()

    def _reset(self) -> None:
        self._field, self._is_open, self._body = self._template.rest, False, ""
        self._captures = {}

    def _typed(self, value: Any) -> Any:
        """Return a call, or a list of them, whose arguments have the types of its tool's schema as far as they can."""
        if isinstance(value, list):
            return [self._typed(each) for each in value]
        call = value.get("function") if isinstance(value, dict) else None
        name, arguments = (call.get("name"), call.get("arguments")) if isinstance(call, dict) else (None, None)
        if not isinstance(name, str) or not isinstance(arguments, dict):
            return value
        for key, argument in arguments.items():
            types = list(_types(self._properties.get(name, {}).get(key)))
            if types and isinstance(argument, str):
                arguments[key] = _cast(argument, types)
            elif types and isinstance(argument, list) and "array" not in types:  # a tag that came several times
                arguments[key] = [_cast(each, types) if isinstance(each, str) else each for each in argument]
        return value


def _compiled(pattern: str) -> Any:
    """Return a regular expression. Raises ValueError."""
    try:
        return regex.compile(pattern, regex.DOTALL)
    except regex.error as error:
        raise ValueError(f"{pattern!r} is no regular expression: {error}") from None


# Values of texts


def _read(text: str, content: str, args: Args) -> Any:
    return CONTENTS[content](text, args)


def _plain(text: str, args: Args) -> str:
    return text.strip() if args.get("strip", True) else text


def _json(text: str, args: Args) -> Any:
    """Read JSON as models write it: keys may lack quotes, and strings may have other marks than quotes."""
    marks, strings = args.get("string_delims", []), list[str]()
    if marks and any(each in text for each in KEPT.split("{}")):
        raise ValueError("the JSON has control characters")

    def keep(match: Any) -> str:
        strings.append(match[1])
        return KEPT.format(len(strings) - 1)

    mended = text
    for opening, closing in marks:
        mended = _compiled(f"{regex.escape(opening)}(.*?){regex.escape(closing)}").sub(keep, mended)
    if args.get("unquoted_keys", False):
        mended = regex.sub(r"(?<=[{,])(\w+):", r'"\1":', mended)
    for i, string in enumerate(strings):
        mended = mended.replace(KEPT.format(i), json.dumps(string))
    try:
        return json.loads(mended)
    except json.JSONDecodeError as error:
        if args.get("allow_non_json"):
            return _plain(text, args)
        raise ValueError(f"it is no JSON: {error}") from None


def _tags(text: str, args: Args) -> dict[str, Any]:
    """Read tags by a pattern with a ``key`` and a ``value``."""
    if "tag_pattern" not in args:
        raise ValueError("xml-inline needs a tag_pattern")
    found: dict[str, Any] = {}
    for match in regex.finditer(args["tag_pattern"], text, flags=regex.DOTALL):
        groups = match.groupdict()
        if (key := groups.get("key")) is None:
            raise ValueError("a tag_pattern needs a group named key")
        value = _nested(groups.get("value", ""), args)
        if key in found and args.get("merge_duplicates", False):
            before = found[key]
            found[key] = [*(before if isinstance(before, list) else [before]), value]
        else:
            found[key] = value
    return found


def _lines(text: str, args: Args) -> dict[str, Any]:
    """Read lines of a key, a separator and a value."""
    separator = args.get("kv_sep", ":")
    lines = (_plain(line, args) for line in text.split(args.get("line_sep", "\n")))
    pairs = (line.split(separator, 1) for line in lines if line and separator in line)
    return {_plain(key, args): _nested(_plain(value, args), args) for key, value in pairs}


def _nested(text: str, args: Args) -> Any:
    parser = args.get("value_parser")
    return text if parser is None else _read(text, parser.get("name", "text"), parser.get("args", {}))


CONTENTS: Mapping[str, Callable[[str, Args], Any]] = {
    "text": _plain,
    "int": lambda text, args: int(_plain(text, args)),
    "float": lambda text, args: float(_plain(text, args)),
    "bool": lambda text, args: _plain(text, args).lower() in ("true", "1"),
    "json": _json,
    "xml-inline": _tags,
    "kv-lines": _lines,
}
"""Readers of a field's text, by their names in templates."""


def _texts(shape: Any) -> Iterator[str]:
    """Yield every text in a transform but for keys."""
    if isinstance(shape, str):
        yield shape
    elif isinstance(shape, (dict, list)):
        for each in shape.values() if isinstance(shape, dict) else shape:
            yield from _texts(each)


def _filled(shape: Any, scope: Args) -> Any:
    """Return a transform with its placeholders replaced. Raises KeyError or ValueError for one that stands for nothing."""
    if isinstance(shape, dict):
        return {key: _filled(each, scope) for key, each in shape.items()}
    if isinstance(shape, list):
        return [_filled(each, scope) for each in shape]
    place = PLACEHOLDER.fullmatch(shape) if isinstance(shape, str) else None
    if place is None:
        return shape
    value: Any = scope
    for key in place[1].split("."):
        if not isinstance(value, Mapping):
            raise ValueError(f"{place[0]} asks for a part of what has none")
        value = value[key]
    return value


# Types of arguments


def _properties(tool: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the name of a tool, and the schemas of its parameters by their names."""
    function = tool.get("function", tool)
    if isinstance(function, Mapping) and isinstance(name := function.get("name"), str):
        parameters = function.get("parameters")
        properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
        yield name, properties if isinstance(properties, Mapping) else {}


def _types(schema: Any) -> Iterator[str]:
    """Yield the types that a schema allows, in its order."""
    if not isinstance(schema, Mapping):
        return
    said = schema.get("type")
    yield from (each for each in (said if isinstance(said, list) else [said]) if isinstance(each, str))
    for choice in chain(schema.get("anyOf") or [], schema.get("oneOf") or []):
        yield from _types(choice)
    if schema.get("nullable"):
        yield "null"


def _cast(text: str, types: Sequence[str]) -> Any:
    """Return the text as a value of the first of ``types`` that fits, or unchanged."""
    for name in types:
        try:
            return CASTS[name](text)
        except (ValueError, KeyError):
            continue
    return text


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        number = float(text)
    if not number.is_integer():
        raise ValueError(text)
    return int(number)


def _number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return int(number) if number.is_integer() and "." not in text else number


def _loaded(kind: type, text: str) -> Any:
    value = json.loads(text)
    if not isinstance(value, kind):
        raise ValueError(text)
    return value


BOOLEANS = {"true": True, "1": True, "false": False, "0": False}
NULLS = {"null": None, "None": None}
CASTS: Mapping[str, Callable[[str], Any]] = {
    "integer": _integer,
    "number": _number,
    "boolean": lambda text: BOOLEANS[text.strip().lower()],
    "null": lambda text: NULLS[text.strip()],
    "object": lambda text: _loaded(dict, text),
    "array": lambda text: _loaded(list, text),
}
"""Functions that turn a text into a value, by the JSON schema's name of the type."""
