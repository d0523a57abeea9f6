"""Chats in the native core: words in, words out, over an artifact's folder."""

from __future__ import annotations

import ctypes
import json
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from ctypes import byref, c_int64, c_size_t
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybridge.runtime.artifact.manifest import read_manifest
from hybridge.runtime.binding.checkpoint import PrefixCache
from hybridge.runtime.binding.generation import signals_wait
from hybridge.runtime.binding.interface import (
    CHECKPOINT_BYTES,
    AnswerStruct,
    ArtifactHandle,
    CacheHandle,
    CallStruct,
    ChatHandle,
    ChatOptionsStruct,
    CText,
    GenerationStruct,
    MessageStruct,
    OnPiece,
    PictureHandle,
    PieceStruct,
    ResultStruct,
    Thinking,
)
from hybridge.runtime.binding.library import copied_text, failure, load, load_operators, run
from hybridge.runtime.binding.pictures import Picture
from hybridge.runtime.binding.session import Session
from hybridge.runtime.binding.tokenizer import Tokenizer

if TYPE_CHECKING:
    from hybridge.runtime.binding.jinja import JinjaTemplate

OnWords = Callable[[str, str], object]
"""Called with what a token adds to an answer's content and reasoning; ends the answer by returning False."""


class OpenChat:
    """A conversation of the core, however it is written: messages, their tokens, and the session whose state follows them."""

    def __init__(self, handle: ChatHandle, session: Session | None = None) -> None:
        """Take over a chat's handle. session: the one that it is over, which is not to be closed before this."""
        self.handle, self._session = handle, session
        self._error: BaseException | None = None
        weakref.finalize(self, load().hybridge_chat_close, handle)

    def set_system(self, text: str) -> None:
        """Tell the model something else before the first message, or nothing; the next answer reads the messages anew.

        Raises UsageError if the chat template refuses it.
        """
        data = utf8(text)
        self._run("chat_set_system", data, len(data))

    def undo(self) -> None:
        """Undo the last message and its answer. Raises UsageError without one."""
        self._run("chat_undo")

    def reset(self) -> None:
        """Begin anew, after the messages of the system."""
        self._run("chat_reset")

    def save(self, path: Path) -> None:
        """Write the state and the conversation, with the files of its pictures, to one file; raises like ``Session.save``.

        Raises PictureError for more pictures than a file takes.
        """
        if self._session is not None:
            self._session.check_artifact()
        self._run("chat_save", CText("the path", os.fsencode(path)))

    def load(self, path: Path) -> None:
        """Continue a saved conversation.

        Raises StateFileError if the file has none, PictureError for pictures that cannot be opened, and like
        ``Session.load_state``.
        """
        if self._session is not None:
            self._session.check_artifact()
        self._run("chat_load", CText("the path", os.fsencode(path)))

    def cancel(self) -> None:
        """End the answer that runs, from any thread."""
        run("chat_cancel", self.handle)

    @property
    def messages(self) -> list[dict[str, Any]]:
        """Return the conversation, as chat templates expect it."""
        count = c_size_t()
        run("chat_messages", self.handle, None, 0, byref(count), None)
        found = (MessageStruct * count.value)()
        run("chat_messages", self.handle, found, len(found), byref(count), None)
        return list(map(message_of, found))

    @property
    def room(self) -> int:
        """Return the number of tokens that still fit."""
        count, room = c_size_t(), c_int64()
        run("chat_messages", self.handle, None, 0, byref(count), byref(room))
        return room.value

    @property
    def note(self) -> str:
        """Return the conversation as JSON, as its file has it: messages, tokens, and where each message and answer begins."""
        return copied_text("chat_note", self.handle)

    def restore(self, note: str) -> None:
        """Continue the conversation of a note, whose tokens the next answer reads.

        Raises StateFileError for another model's or a damaged one, PictureError for pictures that cannot be opened.
        """
        data = note.encode()
        self._run("chat_restore", data, len(data))

    def show(self, pictures: Sequence[Picture]) -> None:
        """Put pictures before the next message, in the place of those that wait."""
        handles = (PictureHandle * len(pictures))(*(each.handle for each in pictures))
        self._run("chat_show", handles, len(handles))

    def _answer(
        self, call: str, words: tuple[object, ...], show: OnWords, options: GenerationStruct | None, stop: Sequence[str],
        answer: AnswerStruct,
    ) -> AnswerStruct:  # fmt: skip
        """Generate an answer, and write what it took into ``answer``, also if a function or a signal's handler raises."""

        def on_piece(piece: Any, _: object) -> int:
            each: PieceStruct = piece.contents
            try:
                wanted = show(text_at(each.content, each.content_size), text_at(each.reasoning, each.reasoning_size))
            except BaseException as error:
                self._fail(error)
                return 0
            # A signal's handler may have raised before the core was in the call: its cancel was for no call then.
            return wanted is not False and self._error is None

        stops = (ctypes.c_char_p * len(stop))(*(CText("a stop string", utf8(each)) for each in stop))
        given = None if options is None else byref(options)
        self._run(call, *words, given, stops, len(stop), OnPiece(on_piece), None, byref(answer))
        return answer

    def _fail(self, error: BaseException) -> None:
        """End the answer that runs; the first error is raised once it has ended."""
        self._error = self._error or error
        load().hybridge_chat_cancel(self.handle)

    def _run(self, call: str, *arguments: object) -> None:
        """Call a function of the core. Raises the first error of a function or a signal's handler that ran in the meantime."""
        self._error = None
        with signals_wait(self._fail):
            status = getattr(load(), f"hybridge_{call}")(self.handle, *arguments)
            if self._error is not None:
                raise self._error
        if status:
            raise failure(status) if self._session is None else self._session.model.reason(status)


class Chat(OpenChat):
    """A chat by the model's chat template, as apps have it: ``hybridge_chat_*`` of hybridge.h."""

    @classmethod
    def open(
        cls, folder: Path, system: str = "", thinking: Thinking = Thinking.AS_USUAL, checkpoint_bytes: int = CHECKPOINT_BYTES,
        variables: Mapping[str, Any] | None = None, tools: Sequence[Mapping[str, Any]] = (),
    ) -> Chat:  # fmt: skip
        """Open an artifact's folder and begin.

        Args:
            folder: the artifact.
            system: what the model is told before the first message.
            thinking: whether it thinks before it answers.
            checkpoint_bytes: most memory for states to go back to.
            variables: more of them for the chat template.
            tools: that the model may call, as OpenAI's API has them.

        Raises:
            ArtifactError: the folder has no chats; the message says why.
            UsageError: the model's template refuses a message of the system, knows no tools, or has no switch for thinking.
        """
        load_operators(read_manifest(folder).namespaces)
        artifact, handle = ArtifactHandle(), ChatHandle()
        run("artifact_open", CText("the path", os.fsencode(folder)), byref(artifact))
        try:
            run("chat_open", artifact, byref(chat_options(system, thinking, checkpoint_bytes, variables, tools)), byref(handle))
        finally:
            load().hybridge_artifact_close(artifact)
        return cls(handle)

    @classmethod
    def over(
        cls, session: Session, tokenizer: Tokenizer, chat_template: JinjaTemplate, system: str = "",
        thinking: Thinking = Thinking.AS_USUAL, checkpoint_bytes: int = CHECKPOINT_BYTES,
        variables: Mapping[str, Any] | None = None, tools: Sequence[Mapping[str, Any]] = (),
    ) -> Chat:  # fmt: skip
        """Begin over a session, which must stay. Raises like ``open``."""
        options = chat_options(system, thinking, checkpoint_bytes, variables, tools)
        return cls(chat_over(session, tokenizer, chat_template, options), session)

    def send(
        self, message: str, show: OnWords, options: GenerationStruct | None = None, stop: Sequence[str] = (),
        pictures: Sequence[Picture] = (),
    ) -> AnswerStruct:  # fmt: skip
        """Answer a message, piece by piece, before which there may be pictures.

        Raises the error for the core's status, with the conversation as it was.
        """
        self.show(pictures)
        data = utf8(message)
        return self._answer("chat_send", (data, len(data)), show, options, stop, AnswerStruct())

    def give_results(
        self, results: Sequence[str], show: OnWords, options: GenerationStruct | None = None, stop: Sequence[str] = ()
    ) -> AnswerStruct:
        """Answer the results of the tools that the last answer called, in the order of its calls. Raises like ``send``."""
        texts = list(map(utf8, results))
        return self._answer("chat_give_results", result_words(texts), show, options, stop, AnswerStruct())

    def retry(self, show: OnWords, options: GenerationStruct | None = None, stop: Sequence[str] = ()) -> AnswerStruct:
        """Answer the last message again."""
        return self._answer("chat_retry", (), show, options, stop, AnswerStruct())

    def continue_answer(self, show: OnWords, options: GenerationStruct | None = None, stop: Sequence[str] = ()) -> AnswerStruct:
        """Go on with the last answer. Raises UsageError without one, or if it calls tools or ended at a stop string."""
        return self._answer("chat_continue", (), show, options, stop, AnswerStruct())


def chat_over(session: Session, tokenizer: Tokenizer, chat_template: JinjaTemplate, options: ChatOptionsStruct) -> ChatHandle:
    """Return the handle of a new chat over a session, which must stay. Raises like ``Chat.open``."""
    handle = ChatHandle()
    run("chat_over", session.handle, tokenizer.handle, chat_template.handle, byref(options), byref(handle))
    return handle


def result_words(texts: Sequence[bytes]) -> tuple[object, int]:
    """Return results of tools for the core, and their number; ``texts`` must live as long."""
    return (ResultStruct * len(texts))(*(ResultStruct(address(each), len(each)) for each in texts)), len(texts)


def message_of(given: MessageStruct) -> dict[str, Any]:
    """Return a message of the core as chat templates expect it."""
    content = message_content(text_at(given.content, given.content_size), given.pictures)
    message: dict[str, Any] = {"role": given.role.decode(), "content": content}
    if reasoning := text_at(given.reasoning, given.reasoning_size):
        message["reasoning_content"] = reasoning
    calls = list(map(_call, given.calls[: given.call_count]))
    if message["role"] == "tool":
        message |= {"tool_call_id": calls[0]["id"], "name": calls[0]["function"]["name"]}
    elif calls:
        message["tool_calls"] = calls
    return message


def _call(given: CallStruct) -> dict[str, Any]:
    arguments = json.loads(text_at(given.arguments, given.arguments_size) or "{}")
    function = {"name": text_at(given.name, given.name_size), "arguments": arguments}
    return {"id": given.id.decode(), "type": "function", "function": function}


def message_content(text: str, pictures: int) -> str | list[dict[str, Any]]:
    """Return the content of a message as chat templates expect it: pictures before its text, or the text alone."""
    return [*({"type": "image"} for _ in range(pictures)), {"type": "text", "text": text}] if pictures else text


def address(data: bytes) -> int | None:
    """Return where bytes are, as long as they live."""
    return ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value


def utf8(text: str) -> bytes:
    """Return a text in UTF-8, except half surrogate pairs, which the core reads as U+FFFD."""
    return text.encode("utf-8", "surrogatepass")


def text_at(data: int | None, size: int) -> str:
    """Return a text of the core."""
    return ctypes.string_at(data or 0, size).decode() if size else ""


def chat_options(
    system: str = "", thinking: Thinking = Thinking.AS_USUAL, checkpoint_bytes: int = CHECKPOINT_BYTES,
    variables: Mapping[str, Any] | None = None, tools: Sequence[Mapping[str, Any]] | None = None,
    cache: PrefixCache | None = None, now: str | None = None,
) -> ChatOptionsStruct:  # fmt: skip
    """Return the options of a chat; see ``Chat.open``.

    cache: keeps the states to go back to, in place of one of its own. now: see ``ChatTemplate``.
    """
    more = None if variables is None else CText("the variables", json.dumps(variables).encode())
    offered = CText("the tools", json.dumps(list(tools)).encode()) if tools else None
    kept = CacheHandle() if cache is None else cache.handle
    time = None if now is None else CText("the time", now.encode())
    return ChatOptionsStruct(
        system=CText("the system prompt", utf8(system)), thinking=thinking, checkpoint_bytes=checkpoint_bytes, variables=more,
        tools=offered, cache=kept, now=time,
    )  # fmt: skip
