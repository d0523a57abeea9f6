"""Turn conversations into tokens; an answer of this server keeps the tokens that it was generated as."""

from __future__ import annotations

import hashlib
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from hybridge.errors import HybridgeError
from hybridge.runtime.binding.jinja import RenderedChat, Spans
from hybridge.runtime.binding.pictures import Picture
from hybridge.runtime.binding.tokenizer import Encoding, Tokenizer
from hybridge.runtime.server.requests import ApiError, ChatMessage, invalid
from hybridge.runtime.text.answers import Answer
from hybridge.runtime.text.chat_template import Message
from hybridge.runtime.text.pictures import expanded, with_pictures

ChatRenderer = Callable[[list[dict[str, Any]], Mapping[str, Any]], RenderedChat]
"""Renders messages by the chat template with further variables, up to the assistant's turn."""

Key = TypeVar("Key")
MOST_ANSWERS = 512
"""Answers that are remembered."""
LATE = 3
"""Latest messages of a user that get a checkpoint before them, for edits; each costs a chunk of reading."""
BEGINNING = 12
"""Characters for each token of the context beyond which a text is encoded only if its beginning fits."""
TOO_LONG = "context_length_exceeded"
"""OpenAI's code of a prompt that leaves no room for an answer."""
OTHER = "\u2603"
"""A message that no client sends, to find where the rendered text of a message begins."""


@dataclass(frozen=True)
class Prompt:
    """A prompt: its text as the template wrote it, and its tokens.

    Args:
        marks: lengths of the tokens at which other conversations may branch off.
        messages, variables: the template's input.
        lead: text after the template's, as if the model had written it.
        spelled: see ``Beginning``.
        pictures: in order, open as long as the prompt lives.
    """

    text: str
    tokens: list[int]
    marks: tuple[int, ...] = ()
    messages: Sequence[dict[str, Any]] = ()
    variables: Mapping[str, Any] = field(default_factory=dict)
    lead: str = ""
    spelled: Spans = ()
    pictures: Sequence[Picture] = ()


@dataclass(frozen=True)
class Beginning:
    """The beginning of a conversation. spelled: parts of it in which people spelled a special token; pictures: ids of each."""

    text: str = ""
    spelled: Spans = ()
    pictures: tuple[tuple[int, ...], ...] = ()

    def is_of(self, other: Beginning) -> bool:
        """Return whether another conversation begins with this one."""
        return (
            other.text.startswith(self.text)
            and _until(other.spelled, len(self.text)) == self.spelled
            and other.pictures[: len(self.pictures)] == self.pictures
        )


class Prompts:
    """Makes prompts of conversations.

    Encoding an answer again may give other tokens than it was generated as, which would have to be read anew: so the latest
    answers are remembered by the whole text up to their end, as the template writes it. Reasoning before a call of a tool is
    remembered by the call, because most clients do not send it back. Templates and tokenizers are slow on long texts: call this
    from other threads than the loop's.
    """

    def __init__(self, tokenizer: Tokenizer, render: ChatRenderer, longest: int, eos_ids: Sequence[int] = ()) -> None:
        """Remember no answers yet.

        longest: tokens of the context. eos_ids: tokens that end an answer, also in templates.
        """
        self.tokenizer, self.render, self.longest = tokenizer, render, longest
        special = sorted(tokenizer.added_tokens(special=True).values(), key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, special)) or "(?!)")
        self._longest_token = max(1, tokenizer.info.longest)
        self._lock = threading.Lock()
        self._answers: OrderedDict[Beginning, list[int]] = OrderedDict()
        self._reasons: OrderedDict[str, str] = OrderedDict()
        self._cuts: OrderedDict[bytes, None] = OrderedDict()
        self._ends = [text for token in eos_ids if (text := tokenizer.id_to_token(token))]

    def of_chat(
        self, messages: Sequence[ChatMessage], variables: Mapping[str, Any], pictures: Sequence[Picture] = ()
    ) -> Prompt:
        """Return the prompt of a conversation.

        pictures: of the messages, in order.

        Raises like the renderer, ApiError if it is too long, and PictureError if the template does not place the pictures.
        """
        shown = tuple(tuple(each.ids) for each in pictures)
        plain = _with_one_system_turn([self._with_reasons(message.for_template()) for message in messages])
        rendered = self.render(plain, variables)
        asked = Beginning(rendered.text, self._spelled(rendered), shown)
        with self._lock:
            known = max(
                (each for each in self._answers if each.is_of(asked)), key=lambda each: len(each.text), default=Beginning()
            )
            if known.text:
                self._answers.move_to_end(known)
            answered = self._answers.get(known, [])
        behind, new = len(known.text), pictures[len(known.pictures) :]
        encoded = self._encode(rendered.after(behind), "messages")
        tokens = [*answered, *with_pictures(encoded.ids, new)]
        if not tokens:
            raise ApiError(400, "the chat template makes no text of these messages.", param="messages")
        branches = [at - behind for at in self._branches(rendered.text, plain, variables) if at > behind]
        lengths = expanded(encoded.ids, new)
        marks = tuple(sorted({len(answered) + lengths[int((encoded.spans[:, 1] <= at).sum())] for at in branches} - {0}))
        return Prompt(rendered.text, tokens, marks, plain, variables, spelled=asked.spelled, pictures=pictures)

    def of_shortened_chat(
        self, messages: Sequence[ChatMessage], variables: Mapping[str, Any], pictures: Sequence[Picture], wanted: int
    ) -> Prompt:
        """Return the prompt of a conversation, without its oldest messages if it leaves no room for ``wanted`` tokens.

        They go down to half of the context: messages of the user with all that follows them, and never the last one, so no call
        loses its result. A conversation that was shortened before is shortened at the same place as long as it fits, so that
        what was read of it counts. Raises what ``of_chat`` does.
        """
        users = [i for i, message in enumerate(messages) if message.role == "user"]

        def without(count: int) -> Prompt:
            begin, end = (users[0], users[count]) if count else (0, 0)
            before, after = (sum(len(message.pictures) for message in messages[:at]) for at in (begin, end))
            rest = [*pictures[:before], *pictures[after:]]
            return self.of_chat([*messages[:begin], *messages[end:]], variables, rest)

        def fits(count: int, most: int) -> bool:
            try:
                return len(without(count).tokens) <= most
            except ApiError as error:
                if error.code != TOO_LONG:
                    raise
                return False

        cuts = list(_digests(messages, users))
        with self._lock:
            known = max((count for count, cut in enumerate(cuts) if count and cut in self._cuts), default=0)
        least, most = known, len(users) - 1
        if not fits(known, self.longest - min(wanted, max(1, self.longest // 4))) and known < most:
            least += 1
            while least < most:  # the more messages go, the fewer tokens are left
                middle = (least + most) // 2
                least, most = (least, middle) if fits(middle, self.longest // 2) else (middle + 1, most)
            with self._lock:
                _put(self._cuts, cuts[least], None)
        return without(least)

    def of_text(self, text: str) -> list[int]:
        """Return the tokens of a text to continue, with those that the tokenizer adds. Raises ApiError if it is too long."""
        return self._encode(RenderedChat(text), "prompt", around=True).ids

    def check_length(self, at_least: int, param: str, exact: bool = False) -> None:
        """Raise ApiError if the context has no room for a prompt of at least this number of tokens and an answer."""
        if at_least >= self.longest:
            count = str(at_least) if exact else f"at least {at_least}"
            message = f"the prompt has {count} tokens, and a context of {self.longest} leaves no room for an answer."
            advice = ' With truncation "auto" the oldest messages are dropped.' if param == "messages" else ""
            raise invalid(message + advice, param, TOO_LONG)

    def _spelled(self, rendered: RenderedChat) -> Spans:
        """Return the parts of a text in which people spelled a special token."""
        return tuple(
            found.span() for begin, end in rendered.words for found in self._special.finditer(rendered.text, begin, end)
        )

    def _encode(self, rendered: RenderedChat, param: str, around: bool = False) -> Encoding:
        """Encode a text. Raises ApiError early if it is far too long.

        The lower bounds are its length in longest tokens, and half the tokens of its beginning, less those that the cut may
        add.
        """
        text = rendered.text
        at_least, size = len(text) // self._longest_token, BEGINNING * self.longest
        while size < len(text) and at_least < self.longest:
            beginning = self.tokenizer.encode(text[:size], around=False)
            at_least = max(at_least, (len(beginning.ids) - self._longest_token) // 2)
            size *= 4
        self.check_length(at_least, param)
        return self.tokenizer.encode(text, around=around, plain=rendered.words)

    def with_lead(self, prompt: Prompt, lead: str) -> Prompt:
        """Return the prompt with the beginning of its answer."""
        tokens = [*prompt.tokens, *self.tokenizer.encode(lead, around=False).ids]
        return replace(prompt, text=prompt.text + lead, tokens=tokens, lead=lead)

    def remember(self, prompt: Prompt, answer: Answer, text: str, tokens: list[int]) -> None:
        """Remember the tokens of a complete answer. text: as it was generated."""
        said, shown = RenderedChat(text, ((0, len(text)),)), tuple(tuple(each.ids) for each in prompt.pictures)
        spelled = tuple((len(prompt.text) + begin, len(prompt.text) + end) for begin, end in self._spelled(said))
        written = Beginning(prompt.text + text, prompt.spelled + spelled, shown)
        if answer.calls or answer.reasoning:
            written = self._written(prompt, answer, shown) or written
        with self._lock:
            _put(self._answers, written, [*prompt.tokens, *tokens])
            if answer.calls and answer.reasoning:
                _put(self._reasons, answer.calls[0].id, answer.reasoning)

    def _written(self, prompt: Prompt, answer: Answer, pictures: tuple[tuple[int, ...], ...]) -> Beginning | None:
        """Return the conversation up to the answer's end as the template writes it; None if it drops the reasoning."""
        said = ChatMessage.model_validate(answer.message()).for_template()
        try:
            written = self.render([*prompt.messages, said], prompt.variables)
        except HybridgeError:
            return None
        end = max((written.text.rfind(each) for each in self._ends), default=-1)
        keeps = answer.reasoning in written.text
        return Beginning(written.text[:end], _until(self._spelled(written), end), pictures) if end > 0 and keeps else None

    def _with_reasons(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return the message with the reasoning before its calls, if the client left it out."""
        first: dict[str, Any] = next(iter(message.get("tool_calls") or ()), {})
        with self._lock:
            reason = self._reasons.get(first.get("id", ""))
        return message if reason is None or message.get("reasoning_content") else {**message, "reasoning_content": reason}

    def _branches(self, text: str, messages: list[dict[str, Any]], variables: Mapping[str, Any]) -> Iterator[int]:
        """Yield the positions in ``text`` of the user's first and latest messages.

        A conversation branches there if a message is edited, or if another conversation has the same system prompt.
        """
        users = [i for i, message in enumerate(messages) if message["role"] == "user"]
        for i in sorted({*users[:1], *users[-LATE:]} - {0}):
            with suppress(HybridgeError):  # a template may want a conversation to be whole
                other = self.render([*messages[:i], {"role": "user", "content": OTHER}], variables).text
                yield next((at for at, (one, two) in enumerate(zip(text, other, strict=False)) if one != two), 0)


def _digests(messages: Sequence[ChatMessage], users: Sequence[int]) -> Iterator[bytes]:
    """Yield what identifies the conversation up to each message of the user, which is in it."""
    digest, begin = hashlib.sha256(), 0
    for at in users:
        for message in messages[begin : at + 1]:
            digest.update(message.model_dump_json().encode())
        begin = at + 1
        yield digest.digest()


def _until(spans: Spans, end: int) -> Spans:
    """Return the parts of a text that are before its end."""
    return tuple((a, min(b, end)) for a, b in spans if a < end)


def _with_one_system_turn(messages: list[Message]) -> list[Message]:
    """Return messages whose leading system messages are one: many templates refuse or drop the second."""
    count = next((i for i, each in enumerate(messages) if each["role"] != "system" or isinstance(each["content"], list)), 0)
    if count < 2:
        return messages
    return [{**messages[0], "content": "\n\n".join(each["content"] for each in messages[:count])}, *messages[count:]]


def _put(known: OrderedDict[Key, Any], key: Key, value: Any) -> None:
    """Add as the newest entry, and forget the oldest ones beyond MOST_ANSWERS."""
    known[key] = value
    known.move_to_end(key)
    while len(known) > MOST_ANSWERS:
        known.popitem(last=False)
