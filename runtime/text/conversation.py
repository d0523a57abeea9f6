"""Chat by a template in Jinja: the core's conversation, with constraints and statistics of its answers."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import byref
from typing import Any

from hybridge.runtime.core.chat import Messages, OnWords, OpenChat, address, message_of, text_at, utf8
from hybridge.runtime.core.checkpoint import PrefixCache
from hybridge.runtime.core.generation import Callbacks, GenerationArguments, add_counts
from hybridge.runtime.core.interface import (
    AnswerStruct,
    ChatTemplateStruct,
    CText,
    Handle,
    OnAnswer,
    OnRender,
    OnSplit,
    SpanStruct,
)
from hybridge.runtime.core.library import run
from hybridge.runtime.core.pictures import Picture
from hybridge.runtime.core.session import Session
from hybridge.runtime.core.statistics import GenerationStats
from hybridge.runtime.core.tokenizer import Tokenizer, check_stop_strings
from hybridge.runtime.text.answers import Answer, split_text, unsplit
from hybridge.runtime.text.chat_template import Message, Render
from hybridge.runtime.text.generate import GenerationSettings
from hybridge.runtime.text.spelled_tokens import SpelledTokens


class Conversation(OpenChat):
    """Messages, the tokens that they are, and the session whose state follows them.

    Tokens that were read or generated are never encoded again: a new message adds the tokens of the text that the template
    adds. A checkpoint before each message and before its answer makes going back instant, within the budget of
    ``checkpoints``; a state that was dropped is read again. The same states are in the session's snapshot slots, two for a
    turn in a ring, to be saved. Pictures stay open as long as their messages are there, so each is encoded once, and none for
    a state that comes back.
    """

    def __init__(
        self,
        session: Session,
        tokenizer: Tokenizer,
        render: Render,
        settings: GenerationSettings,
        opening: Sequence[Message] = (),
        checkpoints: PrefixCache | None = None,
    ) -> None:
        """Begin a conversation behind the messages ``opening``, which are the system's."""
        self.session, self.render, self.settings = session, render, settings
        self.checkpoints = PrefixCache(session.model) if checkpoints is None else checkpoints
        self.read_again = 0
        """Tokens that the last answer had to read a second time."""
        self._special, self._splitter = SpelledTokens(tokenizer), settings.splitter or unsplit(tokenizer)
        self._splits = Answer()
        self._arguments: GenerationArguments | None = None
        self._kept: object = None  # what the core reads until it calls the template again
        functions = OnRender(self._write), OnAnswer(self._begin), OnSplit(self._split)
        self._template = ChatTemplateStruct(*functions, CText("the chat template", utf8(self._splitter.shown)), None)
        given, handle = Messages(opening), Handle()
        run(
            "chat_with", session.handle, tokenizer.handle, byref(self._template), given.structs, len(opening),
            self.checkpoints.handle, byref(handle),
        )  # fmt: skip
        super().__init__(handle, session)

    def say(
        self,
        text: str,
        show: OnWords | None = None,
        stats: GenerationStats | None = None,
        pictures: Sequence[Picture] = (),
    ) -> str:
        """Answer ``text``, before which there may be pictures; return the answer without its reasoning.

        Args:
            text: the message.
            show: called with what each token adds to content and reasoning; ends the answer by returning False. What it raises
                is raised here; the text so far stays.
            stats: counts what the answer takes.
            pictures: of the message.

        Raises:
            CapacityError: the message does not fit; nothing has changed, as after all that is raised before the first token.
            PictureError: the template has no place for the pictures.
        """
        self.show(pictures)
        data = utf8(text)
        return self._ask("chat_send", (data, len(data)), show, stats)

    def retry(self, show: OnWords | None = None, stats: GenerationStats | None = None) -> str:
        """Answer the last message again, as ``say`` does. Raises UsageError without one."""
        return self._ask("chat_retry", (), show, stats)

    def _ask(self, call: str, words: tuple[object, ...], show: OnWords | None, stats: GenerationStats | None) -> str:
        session, settings, answer, said = self.session, self.settings, AnswerStruct(), list[str]()
        check_stop_strings(settings.stop)
        session.check_generation(settings.max_new_tokens, settings.drafter)
        stats = GenerationStats() if stats is None else stats
        self._arguments = GenerationArguments(
            max_new_tokens=min(settings.max_new_tokens, session.max_seq_len + 1), drafter=settings.drafter,
            sampling=settings.sampling, stats=stats,
        )  # fmt: skip
        calls = Callbacks(session.handle, session.vocab_size, self._arguments, self._fail)
        began = session.length

        def told(content: str, reasoning: str) -> object:
            said.append(content)
            return show(content, reasoning) if show is not None else None

        try:
            options = calls.options(constrained=settings.constrain is not None)
            self._answer(call, words, told, options, settings.stop, answer)
        finally:
            add_counts(stats, answer.generated)
            stats.new_tokens += answer.generated.tokens
            stats.prompt_tokens += answer.prompt_tokens
            self.read_again = max(0, min(began, answer.prompt_tokens + answer.cached_tokens - 1) - answer.cached_tokens)
        return "".join(said)

    # The template, which the core calls; it has no place for what is raised here

    def _write(self, messages: Any, count: int, written: Any, _: object) -> int:
        try:
            rendered = self._special.rendered(self.render, list(map(message_of, messages[:count])))
            text = rendered.text.encode(errors="replace")
            words = (SpanStruct * len(rendered.spelled))(*(_in_bytes(rendered.text, *span) for span in rendered.spelled))
            out = written.contents
            out.text, out.size, out.words, out.word_count = text, len(text), words, len(words)
            self._kept = text, words
        except BaseException as error:
            self._fail(error)
            return 1
        return 0

    def _begin(self, rendered: Any, size: int, _: object) -> int:
        try:
            prompt = text_at(rendered, size)
            self._splits = self._splitter.answer(prompt)
            if self.settings.constrain is not None and self._arguments is not None:
                self._arguments.constraint = self.settings.constrain(prompt)
        except BaseException as error:
            self._fail(error)
            return 1
        return 0

    def _split(self, piece: Any, size: int, ended: int, parts: Any, _: object) -> None:
        try:
            content, reasoning = map(utf8, split_text(self._splits, text_at(piece, size), ended=bool(ended)))
            self._kept, out = (content, reasoning), parts.contents
            out.content, out.content_size = address(content), len(content)
            out.reasoning, out.reasoning_size = address(reasoning), len(reasoning)
        except BaseException as error:
            self._fail(error)


def _in_bytes(text: str, begin: int, end: int) -> SpanStruct:
    return SpanStruct(*(len(text[:at].encode(errors="replace")) for at in (begin, end)))
