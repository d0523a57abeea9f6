"""Chats in the native core: words in, words out, over an artifact's folder; and conversations written by a chat format."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Mapping, Sequence
from ctypes import byref, c_int64, c_size_t, c_uint64
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hybridge.cache.errors import UsageError
from hybridge.runtime.artifacts.manifest import read_manifest
from hybridge.runtime.core.interface import (
    AnswerStruct,
    ChatOptionsStruct,
    Ending,
    GenerationStruct,
    Handle,
    MessageStruct,
    OnPiece,
    PieceStruct,
    SpanStruct,
    Status,
    Thinking,
)
from hybridge.runtime.core.library import failure, load, load_operators, run
from hybridge.runtime.core.session import Session
from hybridge.runtime.core.tokenizer import Tokenizer

OnWords = Callable[[str, str], object]
"""Called with what a token adds to an answer's content and reasoning; ends the answer by returning False."""


@dataclass(frozen=True)
class RenderedChat:
    """The text of a conversation, and the parts of it in UTF-8 that are the words of messages, begin and end in bytes."""

    text: str
    words: list[tuple[int, int]]


def render_chat(
    chat_format: str, messages: Sequence[Mapping[str, Any]], thinking: Thinking = Thinking.AS_USUAL
) -> RenderedChat:
    """Return a conversation as a chat format writes it, up to where the assistant is to speak.

    Args:
        chat_format: the manifest's entry as JSON.
        messages: with ``role``, ``content`` and perhaps ``reasoning_content``.
        thinking: the setting of the template's switch.

    Raises:
        UsageError: this is no chat format, or it cannot write this conversation.
    """
    json, kept = chat_format.encode(), list[bytes]()

    def view(text: str) -> tuple[int | None, int]:
        kept.append(text.encode("utf-8", "surrogatepass"))
        return ctypes.cast(ctypes.c_char_p(kept[-1]), ctypes.c_void_p).value, len(kept[-1])

    given = (MessageStruct * len(messages))(
        *(
            MessageStruct(each["role"].encode(), *view(each["content"]), *view(each.get("reasoning_content") or ""))
            for each in messages
        )
    )
    capacity, most, size, count = 4096, 64, c_size_t(), c_size_t()
    while True:
        text, words = ctypes.create_string_buffer(capacity), (SpanStruct * most)()
        status = load().hybridge_chat_render(
            json, len(json), thinking, given, len(messages), text, capacity, byref(size), words, most, byref(count)
        )
        if status in (Status.INVALID_FILE, Status.INVALID_ARGUMENT):
            raise UsageError(f"the conversation cannot be written: {load().hybridge_failure().decode(errors='replace')}.")
        if status:
            raise failure("chat_render", status)
        if size.value <= capacity and count.value <= most:
            spans = [(each.begin, each.end) for each in words[: count.value]]
            return RenderedChat(text.raw[: size.value].decode(), spans)
        capacity, most = max(capacity, size.value), max(most, count.value)


class Chat:
    """A chat over an artifact's folder, as apps have it: ``hybridge_chat_*`` of hybridge.h."""

    def __init__(self, handle: c_uint64, session: Session | None = None) -> None:
        """Take over a handle of ``hybridge_chat_open``, or over a session; ``open`` and ``over`` make them."""
        self.handle, self._session = handle, session  # which is not to be closed before this
        weakref.finalize(self, load().hybridge_chat_close, handle)

    @classmethod
    def open(cls, folder: Path, system: str = "", thinking: Thinking = Thinking.AS_USUAL, checkpoint_bytes: int = 0) -> Chat:
        """Open an artifact's folder and begin.

        Args:
            folder: the artifact.
            system: what the model is told before the first message.
            thinking: whether it thinks before it answers.
            checkpoint_bytes: most memory for states to go back to; 0 for the usual amount.

        Raises:
            ArtifactError: the folder has no chats; the message says why.
            UsageError: the model's template has no message of the system, or no switch for thinking.
        """
        load_operators(read_manifest(folder).namespaces)
        artifact, handle = Handle(), Handle()
        run("artifact_open", str(folder).encode(), byref(artifact))
        try:
            run("chat_open", artifact, byref(_options(system, thinking, checkpoint_bytes)), byref(handle))
        finally:
            load().hybridge_artifact_close(artifact)
        return cls(handle)

    @classmethod
    def over(
        cls, session: Session, tokenizer: Tokenizer, chat_format: str, system: str = "",
        thinking: Thinking = Thinking.AS_USUAL, checkpoint_bytes: int = 0,
    ) -> Chat:  # fmt: skip
        """Begin over a session, which must stay; ``chat_format`` is the manifest's entry as JSON. Raises like ``open``."""
        handle, json = Handle(), chat_format.encode()
        options = _options(system, thinking, checkpoint_bytes)
        run("chat_over", session.handle, tokenizer.handle, json, len(json), byref(options), byref(handle))
        return cls(handle, session)

    def send(
        self, message: str, show: OnWords, options: GenerationStruct | None = None, stop: Sequence[str] = ()
    ) -> AnswerStruct:
        """Answer a message, piece by piece. Raises the error for the core's status, with the conversation as it was."""
        data = message.encode("utf-8", "surrogatepass")
        return self._answer("chat_send", (data, len(data)), show, options, stop)

    def retry(self, show: OnWords, options: GenerationStruct | None = None, stop: Sequence[str] = ()) -> AnswerStruct:
        """Answer the last message again."""
        return self._answer("chat_retry", (), show, options, stop)

    def undo(self) -> None:
        """Take the last message and its answer back."""
        run("chat_undo", self.handle)

    def reset(self) -> None:
        """Begin anew."""
        run("chat_reset", self.handle)

    def save(self, path: Path) -> None:
        """Write the conversation and the state to a file."""
        run("chat_save", self.handle, str(path).encode())

    def load(self, path: Path) -> None:
        """Go on with a saved conversation."""
        run("chat_load", self.handle, str(path).encode())

    def cancel(self) -> None:
        """End the answer that runs, from any thread."""
        run("chat_cancel", self.handle)

    @property
    def messages(self) -> list[dict[str, str]]:
        """Return the conversation."""
        count = c_size_t()
        run("chat_messages", self.handle, None, 0, byref(count), None)
        found = (MessageStruct * count.value)()
        run("chat_messages", self.handle, found, len(found), byref(count), None)
        said = []
        for each in found:
            message = {"role": each.role.decode(), "content": _text(each.content, each.content_size)}
            if reasoning := _text(each.reasoning, each.reasoning_size):
                message["reasoning_content"] = reasoning
            said.append(message)
        return said

    @property
    def room(self) -> int:
        """Return the number of tokens that still fit."""
        count, room = c_size_t(), c_int64()
        run("chat_messages", self.handle, None, 0, byref(count), byref(room))
        return room.value

    def _answer(
        self, call: str, words: tuple[object, ...], show: OnWords, options: GenerationStruct | None, stop: Sequence[str]
    ) -> AnswerStruct:
        raised: list[BaseException] = []

        def on_piece(piece: Any, _: object) -> int:
            each: PieceStruct = piece.contents
            try:
                wanted = show(_text(each.content, each.content_size), _text(each.reasoning, each.reasoning_size))
            except BaseException as error:  # raised again behind the call, which it ends
                raised.append(error)
                return 0
            return wanted is not False

        stops = (ctypes.c_char_p * len(stop))(*(each.encode("utf-8", "surrogatepass") for each in stop))
        answer, given = AnswerStruct(), None if options is None else byref(options)
        status = getattr(load(), f"hybridge_{call}")(
            self.handle, *words, given, stops, len(stop), OnPiece(on_piece), None, byref(answer)
        )
        if raised:
            raise raised[0]
        if status:
            raise failure(call, status)
        answer.ending = Ending(answer.ending)
        return answer


def _options(system: str, thinking: Thinking, checkpoint_bytes: int) -> ChatOptionsStruct:
    return ChatOptionsStruct(system.encode("utf-8", "surrogatepass"), thinking, checkpoint_bytes)


def _text(data: int | None, size: int) -> str:
    return ctypes.string_at(data or 0, size).decode() if size else ""
