"""How families of models write calls and reasoning: response templates for tokenizers that have none."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

from hybridge.runtime.text.answers import REASONING, Answer, ShownTokens
from hybridge.runtime.text.response_parser import ResponseParser
from hybridge.runtime.text.text_stream import Decoder

log = logging.getLogger(__name__)

ResponseTemplate = Mapping[str, Any]
"""What ``response_parser.py`` reads: fields of a message, and the texts that open and close them."""

CALL = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}
GRANITE = "<|start_of_role|>assistant<|end_of_role|>"
CHATML = ["<|im_start|>assistant\n", "<|im_start|>assistant"]
THINKING = {"open": "<think>", "close": "</think>"}
SAYING: dict[str, Any] = {"content": "text"}


@dataclass(frozen=True)
class Format:
    """How a family's answers are written.

    marker: a text that its chat template or its vocabulary has. call and content: what it writes before the JSON of a call, and
    before content.
    """

    name: str
    marker: str
    response: ResponseTemplate
    call: str = ""
    content: str = ""

    @property
    def has_calls(self) -> bool:
        """Return whether calls can be told from text."""
        return "tool_calls" in self.response["fields"]

    def answer(self, prompt: str, tools: Sequence[Mapping[str, Any]]) -> Answer:
        """Return what takes an answer to ``prompt`` apart; without tools, what looks like a call is text."""
        template = self.response if tools else without_calls(self.response)
        return Answer(prompt, lambda before: ResponseParser(template, before, tools))

    def lead(self, prompt: str, *, call: bool) -> str:
        """Return what stands between ``prompt`` and a call, or content, that comes at once: also the end of its reasoning."""
        close = self.reasoning_end(prompt)
        return (f"\n{close}\n\n" if close else "") + (self.call if call else self.content)

    def reasoning_end(self, prompt: str) -> str:
        """Return the text that ends the reasoning which ``prompt`` has begun; nothing where it has begun none."""
        thinking = None
        for event in ResponseParser(self.response, prompt, []).initial_events:
            is_open = event["type"] != "region_close" and event["field"] in REASONING
            thinking = self.response["fields"][event["field"]] if is_open else None
        close = thinking.get("close", "") if thinking is not None else ""
        return close if isinstance(close, str) else str(close[0])


def _format(name: str, marker: str, anchor: Any, fields: Mapping[str, Any], call: str = "", content: str = "") -> Format:
    return Format(name, marker, {"start_anchor": anchor, "fields": fields}, call, content)


def _fields(calls: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
    fields = {"reasoning_content": THINKING, "content": SAYING}
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
        "open_pattern": r"(?:<\|start\|>assistant)?<\|channel\|>analysis<\|message\|>", "close": "<|end|>",
        "repeats": True, "join": "\n",
    },
    "tool_calls": {
        "open_pattern": r"(?:<\|start\|>assistant)?(?: to=functions\.\S+?)?<\|channel\|>(?:commentary|analysis) to=functions\."
        r"(?P<name>[\w.-]+)\s*(?:<\|constrain\|>)?\s*(?:json)?<\|message\|>",
        "close": "<|call|>", "repeats": True, "content": "json", "transform": CALL,
    },
    "content": {
        "open_pattern": r"(?:<\|start\|>assistant)?<\|channel\|>(?:final|commentary)<\|message\|>",
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
"""By their markers: the first one that a chat template has, else the first one that a vocabulary has as a token."""


BEHIND_THE_PROMPT = r"\A(?:[\s\S]*(?=<think>\s*\Z)|[\s\S]*)"
"""Matches a prompt up to the reasoning that it may have begun at its end."""


def with_general_calls(form: Format | None) -> Format:
    """Return a model's form, if it has one, with calls as JSON in tags, which the model is told of in its prompt."""
    fields = without_calls(form.response)["fields"] if form is not None else {"content": SAYING}
    response = {"start_anchor_pattern": BEHIND_THE_PROMPT, "fields": {**fields, "tool_calls": {"repeats": True, **JSON_CALLS}}}
    return Format("general", "", response, call="<tool_call>\n", content=form.content if form is not None else "")


def answer_format(own: Any, chat_template: str, tokenizer: Tokenizer) -> Format | None:
    """Return how a model's answers are read: by its tokenizer's ``own`` response template, else its family's, if any."""
    if isinstance(own, dict) and _can_be_read(own):
        return Format("own", "", own)
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
    """Return the template of answers to a request without tools: what looks like a call is text."""
    fields = {name: field for name, field in template["fields"].items() if name != "tool_calls"}
    return {**template, "fields": fields} if fields else template


def decoder_of(form: Format | None, tokenizer: Tokenizer) -> Decoder:
    """Return what decodes without special tokens, but for those whose texts are looked for."""
    looked_for = json.dumps(form.response).replace("\\", "") if form is not None else ""
    added = tokenizer.get_added_tokens_decoder().items()
    shown = frozenset(token for token, each in added if each.special and each.content in looked_for)
    return ShownTokens(tokenizer, shown) if shown else tokenizer
