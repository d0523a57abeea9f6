"""Requests to tokens: an answer that the server gave keeps the tokens that it was made of."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from tokenizers import Encoding, Tokenizer

from hybridge.cache.errors import HybridgeError
from hybridge.runtime.server.requests import ApiError, ChatMessage, invalid
from hybridge.runtime.text.answers import Answer

Render = Callable[[list[dict[str, Any]], Mapping[str, Any]], str]
"""The text of messages by the chat template with further variables, up to where the assistant is to speak."""

MOST_ANSWERS = 512
LATE = 3
"""So many of a user's last messages can be edited without reading what stands before them; each costs a chunk of reading."""
BEGINNING = 12
"""Characters for each token of a context: what is longer is encoded only if its beginning has room."""
OTHER = "\u2603"
"""A message that nobody sends."""


@dataclass(frozen=True)
class Prompt:
    """text as the template wrote it; its tokens; marks: after how many of them other conversations may go another way.

    messages and variables: what the template wrote it from. lead: what stands behind that, as if the model had written it.
    """

    text: str
    tokens: list[int]
    marks: tuple[int, ...] = ()
    messages: Sequence[dict[str, Any]] = ()
    variables: Mapping[str, Any] = field(default_factory=dict)
    lead: str = ""


class Prompts:
    """Makes prompts of conversations.

    Encoding an answer again may give other tokens than it was made of, whose state would have to be read anew: so the latest
    answers are remembered by the whole text that they end, as the template writes it. What was reasoned before a call of a tool
    is remembered by the call, because most clients do not send it back. Both a template and a tokenizer take their time for a
    long text, so this is for other threads than the loop's.
    """

    def __init__(self, tokenizer: Tokenizer, render: Render, longest: int, eos_ids: Sequence[int] = ()) -> None:
        """longest: tokens of a context; eos_ids: what ends an answer, as templates write it too."""
        self.tokenizer, self.render, self.longest = tokenizer, render, longest
        self._longest_token = max(map(len, tokenizer.get_vocab()), default=1)
        self._lock = threading.Lock()
        self._answers: OrderedDict[str, list[int]] = OrderedDict()
        self._reasons: OrderedDict[str, str] = OrderedDict()
        self._ends = [text for token in eos_ids if (text := tokenizer.id_to_token(token))]

    def of_chat(self, messages: Sequence[ChatMessage], variables: Mapping[str, Any]) -> Prompt:
        """Return the prompt of a conversation. Raises what rendering it does."""
        plain = [self._with_reasons(message.for_template()) for message in messages]
        text = self.render(plain, variables)
        with self._lock:
            known = max((each for each in self._answers if text.startswith(each)), key=len, default="")
            if known:
                self._answers.move_to_end(known)
            tokens = self._answers.get(known, [])
        encoded = self._encode(text[len(known) :], "messages")
        tokens = [*tokens, *encoded.ids]
        if not tokens:
            raise ApiError(400, "the chat template makes no text of these messages.", param="messages")
        before = len(tokens) - len(encoded.ids)
        branches = [at - len(known) for at in self._branches(text, plain, variables) if at > len(known)]
        marks = {before + sum(end <= at for _, end in encoded.offsets) for at in branches}
        return Prompt(text, tokens, tuple(sorted(marks - {0})), plain, variables)

    def of_text(self, text: str) -> list[int]:
        """Return the tokens of a text that is to be continued, with those that its tokenizer adds. Raises ApiError."""
        return list(self._encode(text, "prompt", add_special_tokens=True).ids)

    def check_length(self, at_least: int, param: str, exact: bool = False) -> None:
        """Raises ApiError for a prompt of so many tokens, or more, where no context has room for them and an answer."""
        if at_least >= self.longest:
            count = str(at_least) if exact else f"at least {at_least}"
            message = f"the prompt has {count} tokens, and a context of {self.longest} leaves no room for an answer."
            raise invalid(message, param, "context_length_exceeded")

    def _encode(self, text: str, param: str, add_special_tokens: bool = False) -> Encoding:
        """Encode a text, other threads meanwhile going on. Raises ApiError early where it is far too long.

        That is by the longest token there is, and then by half of the tokens of its beginning, less those that the cut made.
        """
        at_least, size = len(text) // self._longest_token, BEGINNING * self.longest
        while size < len(text) and at_least < self.longest:
            beginning = self.tokenizer.encode_batch([text[:size]], add_special_tokens=False)[0]
            at_least = max(at_least, (len(beginning) - self._longest_token) // 2)
            size *= 4
        self.check_length(at_least, param)
        # Not ``encode``, which keeps Python's lock.
        encoding: Encoding = self.tokenizer.encode_batch([text], add_special_tokens=add_special_tokens)[0]
        return encoding

    def with_lead(self, prompt: Prompt, lead: str) -> Prompt:
        """Return the prompt with the beginning of its answer."""
        tokens = [*prompt.tokens, *self.tokenizer.encode(lead, add_special_tokens=False).ids]
        return replace(prompt, text=prompt.text + lead, tokens=tokens, lead=lead)

    def remember(self, prompt: Prompt, answer: Answer, text: str, tokens: list[int]) -> None:
        """Remember what a complete answer was made of; text: as it was generated."""
        written = prompt.text + text
        if answer.calls or answer.reasoning:
            written = self._written(prompt, answer) or written
        with self._lock:
            _put(self._answers, written, [*prompt.tokens, *tokens])
            if answer.calls and answer.reasoning:
                _put(self._reasons, answer.calls[0].id, answer.reasoning)

    def _written(self, prompt: Prompt, answer: Answer) -> str | None:
        """The conversation up to the answer's end, as the template will write it once the answer is a part of it."""
        said = ChatMessage.model_validate(answer.message()).for_template()
        try:
            text = self.render([*prompt.messages, said], prompt.variables)
        except HybridgeError:
            return None
        end = max((text.rfind(each) for each in self._ends), default=-1)
        keeps = answer.reasoning in text  # a template that drops the reasoning wants it dropped
        return text[:end] if end > 0 and keeps else None

    def _with_reasons(self, message: dict[str, Any]) -> dict[str, Any]:
        """The message with what was reasoned before its calls, where the client left it out."""
        first: dict[str, Any] = next(iter(message.get("tool_calls") or ()), {})
        with self._lock:
            reason = self._reasons.get(first.get("id", ""))
        return message if reason is None or message.get("reasoning_content") else {**message, "reasoning_content": reason}

    def _branches(self, text: str, messages: list[dict[str, Any]], variables: Mapping[str, Any]) -> Iterator[int]:
        """Yield the characters of ``text`` up to where users say something: behind a system prompt, and of late.

        There a conversation goes another way when a message is edited, or another one begins with the same prompt.
        """
        users = [i for i, message in enumerate(messages) if message["role"] == "user"]
        for i in sorted({*users[:1], *users[-LATE:]} - {0}):
            with suppress(HybridgeError):  # a template may want a conversation to be whole
                other = self.render([*messages[:i], {"role": "user", "content": OTHER}], variables)
                yield next((at for at, (one, two) in enumerate(zip(text, other, strict=False)) if one != two), 0)


def _put(known: OrderedDict[str, Any], key: str, value: Any) -> None:
    """Put in the newest place; the oldest are forgotten."""
    known[key] = value
    known.move_to_end(key)
    while len(known) > MOST_ANSWERS:
        known.popitem(last=False)


# Tools for models whose chat template has no form for them: functions as JSON in the system turn, calls in tags.


Message = dict[str, Any]

TOLD = """You can call these functions, each described by a line of JSON:
{functions}

To call one, write its name and its arguments in this form, and nothing behind it:
<tool_call>
{{"name": "NAME", "arguments": {{"PARAMETER": "VALUE"}}}}
</tool_call>
The result comes in <tool_response> tags. Call a function only where it helps; otherwise answer in words."""
PROBE = {"type": "function", "function": {"name": "hybridge_probe", "description": "None", "parameters": {"type": "object"}}}


def ignores_tools(render: Render) -> bool:
    """Return whether a chat template says nothing of the tools that it is given."""
    try:
        return "hybridge_probe" not in render([{"role": "user", "content": "Hello"}], {"tools": [PROBE]})
    except HybridgeError:  # it may want another conversation, and tell a client so
        return False


def with_tools_in_text(render: Render) -> Render:
    """Return what renders conversations with tools by a template that knows of none."""

    def rendered(messages: list[Message], variables: Mapping[str, Any]) -> str:
        plain = _without_calls(messages)
        others = {name: each for name, each in variables.items() if name != "tools"}
        tools = variables.get("tools")
        if not tools:
            return render(plain, others)
        functions = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
        told = TOLD.format(functions=functions)
        try:
            text = render(_told_by_the_system(plain, told), others)
            if functions in text:
                return text
        except HybridgeError:  # there is no system turn in some templates; others leave it out
            pass
        return render(_told_by_the_user(plain, told), others)

    return rendered


def _told_by_the_system(messages: Sequence[Message], told: str) -> list[Message]:
    if messages and messages[0]["role"] == "system":
        first = messages[0]
        return [{**first, "content": f"{first['content']}\n\n{told}".lstrip()}, *messages[1:]]
    return [{"role": "system", "content": told}, *messages]


def _told_by_the_user(messages: Sequence[Message], told: str) -> list[Message]:
    at = next((i for i, message in enumerate(messages) if message["role"] == "user"), 0)
    return [
        {**message, "content": f"{told}\n\n{message['content']}"} if i == at else message for i, message in enumerate(messages)
    ]


def _without_calls(messages: Sequence[Message]) -> list[Message]:
    """Return messages with calls as an assistant's text, and results as a user's: those in a row are one message."""
    plain: list[Message] = []
    results = False
    for message in messages:
        if message["role"] == "tool":
            said = f"<tool_response>\n{message['content']}\n</tool_response>"
            if results:
                plain[-1] = {**plain[-1], "content": f"{plain[-1]['content']}\n{said}"}
            else:
                plain.append({"role": "user", "content": said})
            results = True
            continue
        if results and message["role"] == "user":
            plain[-1] = {**message, "content": f"{plain[-1]['content']}\n{message['content']}"}
        else:
            plain.append(_in_text(message))
        results = False
    return plain


def _in_text(message: Message) -> Message:
    """Return a message with its calls as text."""
    calls = [
        f"<tool_call>\n{json.dumps(call['function'], ensure_ascii=False)}\n</tool_call>"
        for call in message.get("tool_calls") or ()
    ]
    content = "\n".join([*([message["content"]] if message["content"] else []), *calls])
    return {**{name: each for name, each in message.items() if name != "tool_calls"}, "content": content}
