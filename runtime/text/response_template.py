"""Split answers by a tokenizer's own ``response_template``: the one format that the core's table does not have."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from hybridge.runtime.core.tokenizer import Tokenizer
from hybridge.runtime.text.answers import AnswerFormat, Call, CoreFormat, Delta, Parser, merged
from hybridge.runtime.text.response_parser import ResponseParser

log = logging.getLogger(__name__)

ResponseTemplate = Mapping[str, Any]
"""Fields of a message, and the texts that open and close them; see ``response_parser.py``."""
WORDS = re.compile(r"[\w\s.,;:!?'\"()-]+|.", re.DOTALL)
"""Words with the space around them, or a single character that may end a call."""
REASONING = ("reasoning_content", "thinking", "reasoning")
"""Names of a message's reasoning; templates read the first, gpt-oss' the second."""
JSON_CALLS = {
    "open_pattern": r"\s*<tool_call>",
    "close": "</tool_call>",
    "content": "json",
    "transform": {"type": "function", "function": "{content}"},
}
BEHIND_THE_PROMPT = r"\A(?:[\s\S]*(?=<think>\s*\Z)|[\s\S]*)"
"""Match a prompt up to the reasoning that it may have begun at its end."""


def answer_format(own: Any, chat_template: str, tokenizer: Tokenizer) -> AnswerFormat | None:
    """Return the format by the tokenizer's ``own`` response template, or of its family; None if neither is known."""
    if isinstance(own, dict) and _can_be_read(own):
        return TemplateFormat(own)
    return CoreFormat.find(chat_template, tokenizer)


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


class TemplateFormat(AnswerFormat):
    """The format of a response template."""

    call = content = ""

    def __init__(self, response: ResponseTemplate, name: str = "own", call: str = "") -> None:
        self.response, self.name, self.call = response, name, call
        self.has_calls = "tool_calls" in response["fields"]
        self.looked_for = json.dumps(response).replace("\\", "")

    def parser(self, prompt: str, tools: Sequence[Mapping[str, Any]]) -> Parser:
        template = self.response if tools else without_calls(self.response)
        return TemplateParser(prompt, lambda before: ResponseParser(template, before, tools))

    def reasoning_end(self, prompt: str) -> str:
        thinking = None
        for event in ResponseParser(self.response, prompt, []).initial_events:
            is_open = event["type"] != "region_close" and event["field"] in REASONING
            thinking = self.response["fields"][event["field"]] if is_open else None
        close = thinking.get("close", "") if thinking is not None else ""
        return close if isinstance(close, str) else str(close[0])

    def general(self) -> AnswerFormat:
        fields = without_calls(self.response)["fields"] if self.response["fields"].keys() != {"tool_calls"} else {}
        calls = {"tool_calls": {"repeats": True, **JSON_CALLS}}
        response = {"start_anchor_pattern": BEHIND_THE_PROMPT, "fields": {**fields, **calls}}
        return TemplateFormat(response, "general", "<tool_call>\n")


class TemplateParser:
    """Splits one answer by a response template; a region that cannot be parsed becomes content."""

    def __init__(self, prompt: str, make: Callable[[str], ResponseParser]) -> None:
        """Begin the answer to a prompt. make: makes a parser from the prompt; what it raises is raised here."""
        self._make, self._parser = make, make(prompt)
        self._raw, self._spaces, self._unreadable = "", "", False
        opened = [each for each in self._parser.initial_events if each["type"] == "region_open"]
        self._regions = len(opened)
        self._calling = any(each["field"] == "tool_calls" for each in opened)
        self._begun = not opened

    def push(self, text: str) -> list[Delta]:
        """Feed the parser single characters inside a call, and whole words elsewhere, which is far faster.

        Single characters limit what is lost if a region turns out not to be a call.
        """
        found: list[Delta] = []
        for piece in WORDS.findall(text):
            for part in piece if self._calling else (piece,):
                found += self._read(part)
        return merged(found)

    def finish(self) -> list[Delta]:
        """Return what is left once the text has ended."""
        return merged(list(self._read(None)))

    def _read(self, text: str | None) -> Iterator[Delta]:
        """Yield what more text adds, or the end if it is None."""
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
            yield from self._trimmed(event["text"], name in REASONING)

    def _trimmed(self, text: str, is_reasoning: bool) -> Iterator[Delta]:
        """Drop the whitespace between one part and the next."""
        text = self._spaces + text
        text = text if self._begun else text.lstrip()
        self._spaces = text[len(text.rstrip()) :]
        if said := text.rstrip():
            self._begun = True
            yield Delta(reasoning=said) if is_reasoning else Delta(content=said)

    def _call(self, value: Any) -> Iterator[Delta]:
        try:
            calls = list(calls_in(value))
        except (ValueError, RecursionError):
            yield from self._unread()
            return
        self._raw = ""
        for call in calls:
            yield Delta(call=call)

    def _unread(self) -> Iterator[Delta]:
        raw, self._raw, self._unreadable = self._raw, "", True
        if said := raw.strip():
            yield Delta(content=said)


def calls_in(value: Any) -> Iterator[Call]:
    """Yield the calls that a parsed region holds: one of OpenAI's form, a name with arguments, or a list of them.

    Raises ValueError for anything else.
    """
    for each in value if isinstance(value, list) else [value]:
        function = each.get("function", each) if isinstance(each, dict) else None
        if not isinstance(function, dict) or not isinstance(name := function.get("name"), str) or not name:
            raise ValueError("it has no name")
        arguments = function.get("arguments", function.get("parameters", {}))
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        if not isinstance(json.loads(text or "{}"), dict):
            raise ValueError("its arguments are no object")
        yield Call(name, text or "{}")
