"""Split a model's answer into content, reasoning and calls of tools while it comes: a door over the core's table of forms."""

from __future__ import annotations

import json
import logging
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from ctypes import byref, c_int, c_size_t, c_void_p, string_at
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, Self
from uuid import uuid4

from hybridge.runtime.binding.chat import utf8
from hybridge.runtime.binding.interface import AnswerFormHandle, AnswerParserHandle
from hybridge.runtime.binding.jinja import JinjaTemplate
from hybridge.runtime.binding.library import copied_text, load, run
from hybridge.runtime.binding.statistics import Origin
from hybridge.runtime.binding.tokenizer import TextStream, Tokenizer, check_stop_strings

log = logging.getLogger(__name__)


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


class Answer:
    """The parts of one answer so far: content, reasoning and calls. Without a parser all text is content."""

    def __init__(self, parser: AnswerParser | None = None, *, parallel: bool = True) -> None:
        """Begin with nothing. parallel: there may be several calls; otherwise the answer ends with its first one."""
        self.content, self.reasoning = "", ""
        self.calls: list[Call] = []
        self.is_cut = False
        """Something came after the only call, and was dropped."""
        self._parser, self._parallel = parser, parallel
        self.has_stops = False
        """Stop strings may end the content; see ``stop_at``."""

    @property
    def is_complete(self) -> bool:
        """Return whether nothing may follow."""
        return (bool(self.calls) and not self._parallel) or self.has_stopped

    @property
    def has_parts(self) -> bool:
        """Return whether there may be more than content."""
        return self._parser is not None

    @property
    def has_stopped(self) -> bool:
        """Return whether the content has ended by a stop string."""
        return self.has_stops and self._parser is not None and self._parser.has_stopped

    def stop_at(self, strings: Sequence[str]) -> None:
        """Let the content end before the first of some strings, which the reasoning may have; needs a parser.

        Raises UsageError for an empty string.
        """
        assert self._parser is not None
        self._parser.stop_at(strings)
        self.has_stops = bool(strings)

    def feed(self, text: str) -> list[Delta]:
        """Return what ``text`` adds."""
        if self._parser is None:
            return self._kept([Delta(content=text)] if text else [])
        return self._kept(self._parser.push(text))

    def finish(self) -> list[Delta]:
        """Return what is left once the text has ended."""
        return self._kept(self._parser.finish() if self._parser is not None else [])

    def message(self) -> dict[str, Any]:
        """Return the message as a client sends it back, reasoning included."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.calls:
            message["tool_calls"] = [call.to_dict() for call in self.calls]
        return message

    def _kept(self, deltas: list[Delta]) -> list[Delta]:
        for i, each in enumerate(deltas):
            if self.calls and not self._parallel:
                self.is_cut = True
                return deltas[:i]
            self.content += each.content
            self.reasoning += each.reasoning
            self.calls += [each.call] if each.call is not None else []
        return deltas


def merged(deltas: Sequence[Delta]) -> list[Delta]:
    """Return deltas with neighbours of the same kind of text and the same origin joined."""
    found: list[Delta] = []
    for each in deltas:
        last = found[-1] if found else each
        is_same = last.call is each.call is None and bool(last.content) == bool(each.content) and last.origin == each.origin
        if found and is_same:
            found[-1] = replace(last, content=last.content + each.content, reasoning=last.reasoning + each.reasoning)
        else:
            found.append(each)
    return found


def split_text(answer: Answer, text: str, *, ended: bool = False) -> tuple[str, str]:
    """Return what ``text``, and the end of the answer if it is its last, adds to content and to reasoning."""
    deltas = [*answer.feed(text), *(answer.finish() if ended else ())]
    return "".join(each.content for each in deltas), "".join(each.reasoning for each in deltas)


class AnswerFormat:
    """The format in which a family of models writes calls and reasoning: a row of the core's table of forms.

    content: text that precedes content. has_calls: calls can be distinguished from text. looked_for: a text that contains all
    special tokens that the parser looks for. description: the row, as ``hybridge_answer_form_describe`` writes it.
    """

    def __init__(self, handle: AnswerFormHandle) -> None:
        self.handle = handle
        weakref.finalize(self, load().hybridge_answer_form_close, handle)
        self.description: Mapping[str, Any] = json.loads(copied_text("answer_form_describe", handle))
        self.name: str = self.description["name"]
        self.looked_for: str = self.description["looked_for"]
        self.content: str = self.description["content_lead"]
        self.has_calls = bool(self.description["call_open"])

    @classmethod
    def find(cls, template: JinjaTemplate, tokenizer: Tokenizer) -> Self:
        """Return the format of a model.

        The model's tokenizer may have a description of its own, ``response_template`` or ``response_schema``; otherwise the
        chat template or the vocabulary has the marks of a family. A description that cannot be followed is logged. A template
        that reads no tools gets calls as JSON in tags, as the prompt then says.
        """
        handle = AnswerFormHandle()
        run("answer_form_find", tokenizer.handle, template.handle, byref(handle))
        if warning := template.description.warning:
            log.warning("%s", warning)
        return cls(handle)

    @classmethod
    def named(cls, name: str) -> Self:
        """Return the format of a family by its name in the table. Raises UsageError."""
        handle, text = AnswerFormHandle(), utf8(name)
        run("answer_form_named", text, len(text), byref(handle))
        return cls(handle)

    def answer(self, prompt: str, tools: Sequence[Mapping[str, Any]], *, parallel: bool = True) -> Answer:
        """Return an empty answer to ``prompt``, ready to be fed.

        Args:
            prompt: rendered text, which may have begun the answer.
            tools: those that are offered; without any, text that looks like a call is content.
            parallel: the answer may have several calls.
        """
        return Answer(AnswerParser(self, prompt, tools), parallel=parallel)

    def reasoning_end(self, prompt: str) -> str:
        """Return the text that ends the reasoning which ``prompt`` has begun, or "" if it has begun none."""
        return AnswerParser(self, prompt, ()).reasoning_end()

    def lead(self, prompt: str) -> str:
        """Return the text that leads from ``prompt`` directly to content, closing reasoning that it has begun."""
        close = self.reasoning_end(prompt)
        return (f"\n{close}\n\n" if close else "") + self.content


class AnswerParser:
    """Splits one answer by a form of the core."""

    def __init__(self, form: AnswerFormat, prompt: str, tools: Sequence[Mapping[str, Any]]) -> None:
        """Begin the answer to a rendered prompt. tools: those that are offered."""
        self.handle = AnswerParserHandle()
        text, offered = utf8(prompt), json.dumps(list(tools)).encode() if tools else b""
        run("answer_open", form.handle, text, len(text), offered, len(offered), byref(self.handle))
        weakref.finalize(self, load().hybridge_answer_close, self.handle)

    def push(self, text: str) -> list[Delta]:
        """Return what a piece of the answer adds."""
        data = utf8(text)
        return self._deltas("answer_push", data, len(data))

    def finish(self) -> list[Delta]:
        """Return what the end of the answer adds."""
        return self._deltas("answer_finish")

    def reasoning_end(self) -> str:
        """Return the text that ends the reasoning which the prompt has begun, or "" if it has begun none."""
        return copied_text("answer_reasoning_end", self.handle)

    def stop_at(self, strings: Sequence[str]) -> None:
        """Let the content end before the first of some strings."""
        check_stop_strings(strings)
        for each in map(utf8, strings):
            run("answer_stop", self.handle, each, len(each))

    @property
    def has_stopped(self) -> bool:
        """Return whether the content has ended by such a string."""
        stopped = c_int()
        run("answer_stopped", self.handle, byref(stopped))
        return bool(stopped.value)

    def _deltas(self, call: str, *arguments: object) -> list[Delta]:
        events, size = c_void_p(), c_size_t()
        run(call, self.handle, *arguments, byref(events), byref(size))
        found = json.loads(string_at(events.value or 0, size.value))
        return [Delta(call=Call(text, more)) if kind == "call" else Delta(**{kind: text}) for kind, text, more in found]


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


def decoder_of(form: AnswerFormat, tokenizer: Tokenizer) -> TokenDecoder:
    """Return a decoder that drops special tokens, except those that the format's parser looks for."""
    special = tokenizer.added_tokens(special=True)
    shown = frozenset(token for token, text in special.items() if text in form.looked_for)
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
