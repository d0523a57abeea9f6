"""Requests to tokens: an answer that the server gave keeps the tokens that it was made of."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from tokenizers import Tokenizer

from hybridge.cache.errors import HybridgeError
from hybridge.export.server.answers import Answer
from hybridge.export.server.errors import ApiError
from hybridge.export.server.requests import ChatMessage

Render = Callable[[list[dict[str, Any]], Mapping[str, Any]], str]
"""The text of messages by the chat template with further variables, up to where the assistant is to speak."""

MOST_ANSWERS = 512
LATE = 3
"""So many of a user's last messages can be edited without reading what stands before them; each costs a chunk of reading."""
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
    is remembered by the call, because most clients do not send it back.
    """

    def __init__(self, tokenizer: Tokenizer, render: Render, eos_ids: Sequence[int] = ()) -> None:
        """eos_ids: what ends an answer, as templates write it too."""
        self.tokenizer, self.render = tokenizer, render
        self._answers: OrderedDict[str, list[int]] = OrderedDict()
        self._reasons: OrderedDict[str, str] = OrderedDict()
        self._ends = [text for token in eos_ids if (text := tokenizer.id_to_token(token))]

    def of_chat(self, messages: Sequence[ChatMessage], variables: Mapping[str, Any]) -> Prompt:
        """Return the prompt of a conversation. Raises what rendering it does."""
        plain = [self._with_reasons(message.for_template()) for message in messages]
        text = self.render(plain, variables)
        known = max((each for each in self._answers if text.startswith(each)), key=len, default="")
        if known:
            self._answers.move_to_end(known)
        encoded = self.tokenizer.encode(text[len(known) :], add_special_tokens=False)
        tokens = [*self._answers.get(known, []), *encoded.ids]
        if not tokens:
            raise ApiError(400, "the chat template makes no text of these messages.", param="messages")
        before = len(tokens) - len(encoded.ids)
        branches = [at - len(known) for at in self._branches(text, plain, variables) if at > len(known)]
        marks = {before + sum(end <= at for _, end in encoded.offsets) for at in branches}
        return Prompt(text, tokens, tuple(sorted(marks - {0})), plain, variables)

    def with_lead(self, prompt: Prompt, lead: str) -> Prompt:
        """Return the prompt with the beginning of its answer."""
        tokens = [*prompt.tokens, *self.tokenizer.encode(lead, add_special_tokens=False).ids]
        return replace(prompt, text=prompt.text + lead, tokens=tokens, lead=lead)

    def remember(self, prompt: Prompt, answer: Answer, text: str, tokens: list[int]) -> None:
        """Remember what a complete answer was made of; text: as it was generated."""
        written = prompt.text + text
        if answer.calls or answer.reasoning:
            written = self._written(prompt, answer) or written
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
