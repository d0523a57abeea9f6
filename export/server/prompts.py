"""Requests to tokens: an answer that the server gave keeps the tokens that it was made of."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

from hybridge.export.server.errors import ApiError
from hybridge.export.server.requests import ChatMessage

Render = Callable[[list[dict[str, Any]], Mapping[str, Any]], str]
"""The text of messages by the chat template with further variables, up to where the assistant is to speak."""

MOST_ANSWERS = 512
OTHER = "\u2603"
"""A message that nobody sends."""


@dataclass(frozen=True)
class Prompt:
    """text as the template wrote it; its tokens; marks: after how many of them other conversations may go another way."""

    text: str
    tokens: list[int]
    marks: tuple[int, ...] = ()


class Prompts:
    """Makes prompts of conversations.

    Encoding an answer again may give other tokens than it was made of, whose state would have to be read anew: so the latest
    answers are remembered by the whole text that they end.
    """

    def __init__(self, tokenizer: Tokenizer, render: Render) -> None:
        self.tokenizer, self.render = tokenizer, render
        self._answers: OrderedDict[str, list[int]] = OrderedDict()

    def of_chat(self, messages: Sequence[ChatMessage], variables: Mapping[str, Any]) -> Prompt:
        """Return the prompt of a conversation. Raises what rendering it does."""
        plain = [message.for_template() for message in messages]
        text = self.render(plain, variables)
        known = max((each for each in self._answers if text.startswith(each)), key=len, default="")
        if known:
            self._answers.move_to_end(known)
        encoded = self.tokenizer.encode(text[len(known) :], add_special_tokens=False)
        tokens = [*self._answers.get(known, []), *encoded.ids]
        if not tokens:
            raise ApiError(400, "the chat template makes no text of these messages.", param="messages")
        system = 0 if known else self._system(text, plain, variables)
        marks = sum(end <= system for _, end in encoded.offsets) if system else 0
        return Prompt(text, tokens, (marks,) if marks else ())

    def remember(self, prompt: Prompt, answer: str, tokens: list[int]) -> None:
        """Remember what a complete answer was made of."""
        self._answers[prompt.text + answer] = [*prompt.tokens, *tokens]
        while len(self._answers) > MOST_ANSWERS:
            self._answers.popitem(last=False)

    def _system(self, text: str, messages: list[dict[str, Any]], variables: Mapping[str, Any]) -> int:
        """Characters of ``text`` up to where the first message of the user says something, if others stand before it."""
        first = next((i for i, message in enumerate(messages) if message["role"] == "user"), 0)
        if not first:
            return 0
        other = self.render([*messages[:first], {"role": "user", "content": OTHER}], variables)
        return next((i for i, (one, two) in enumerate(zip(text, other, strict=False)) if one != two), 0)
