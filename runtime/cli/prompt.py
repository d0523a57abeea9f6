"""Read what a person types in a chat: messages of several lines, edited and remembered at a terminal, or lines of a pipe."""

from __future__ import annotations

import json
import os
import sys
import termios
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from rich.markup import escape

from hybridge.runtime.cli.console import err
from hybridge.runtime.files import private_folder, read_regular, user_state

if TYPE_CHECKING:  # takes long to start, and is for terminals alone
    from prompt_toolkit.completion import Completer
    from prompt_toolkit.history import History
    from prompt_toolkit.key_binding import KeyBindings

PROMPT, CONTINUATION = "> ", ". "
QUOTES = '"""'
MOST_MESSAGES, MOST_BYTES = 1000, 16 << 20
"""That are remembered, and of the file of them."""
BRACKETED_PASTE = "\x1b[?2004h"
"""Marks what is pasted, so that its line ends do not send it; the prompt switches it on and off, an answer keeps it on."""


class Reader(Protocol):
    """Reads messages and commands."""

    def read(self, begun: str = "") -> str:
        """Return the next one. begun: what the line begins with. Raises EOFError at the end, KeyboardInterrupt for Ctrl-C."""


def is_open(text: str) -> bool:
    """Return whether a text begins with three quotes and does not end with three more."""
    text = text.strip()
    return text.startswith(QUOTES) and (len(text) < 2 * len(QUOTES) or not text.endswith(QUOTES))


def unquoted(text: str) -> str:
    """Return a message without the three quotes around it."""
    text = text.strip()
    return text[len(QUOTES) : -len(QUOTES)].strip("\n") if text.startswith(QUOTES) and not is_open(text) else text


class Lines:
    """Reads lines of a pipe; those between three quotes are one message."""

    def read(self, begun: str = "") -> str:
        """Return the next message or command."""
        err.print(f"[bold]{PROMPT}[/]", end="")
        text = input()
        while is_open(text):
            err.print(CONTINUATION, end="")
            try:
                text += "\n" + input()
            except EOFError:
                return text.strip().removeprefix(QUOTES)
        return unquoted(text)


class Prompt:
    """Reads at a terminal, where a paste, or what is between three quotes, is one message, and Alt-Enter begins a new line.

    Up and Ctrl-R find earlier messages, Tab completes commands and file names, Ctrl-C clears the line.
    """

    def __init__(self, commands: Sequence[str], settings: Callable[[], Iterable[str]], *, remember: bool) -> None:
        """commands: those with a slash. settings: the names after ``/set``. remember: for the next chat."""
        from prompt_toolkit import PromptSession

        self._session: PromptSession[str] = PromptSession(
            history=_history(remember), completer=_completer(commands, settings), key_bindings=_keys(), multiline=True,
            complete_while_typing=False, enable_history_search=True, reserve_space_for_menu=4, mouse_support=False,
            prompt_continuation=CONTINUATION,
        )  # fmt: skip

    def read(self, begun: str = "") -> str:
        """Return the next message or command."""
        text = self._session.prompt(PROMPT, default=begun)
        if os.environ.get("TERM") != "dumb":
            sys.stdout.write(BRACKETED_PASTE)
        return unquoted(text)


def _keys() -> KeyBindings:
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

    keys = KeyBindings()

    @keys.add("enter")
    def send(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if is_open(buffer.text):
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    @keys.add("escape", "c-j")  # as the terminal delivers what was typed before the prompt
    def begin_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @keys.add("c-c", eager=True)
    @keys.add("<sigint>")
    def clear(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=KeyboardInterrupt())

    return keys


def _completer(commands: Sequence[str], settings: Callable[[], Iterable[str]]) -> Completer:
    from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
    from prompt_toolkit.document import Document

    paths = PathCompleter(expanduser=True)

    class Commands(Completer):
        def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
            name, blank, argument = document.text_before_cursor.partition(" ")
            if not name.startswith("/"):
                return
            if not blank:
                yield from (Completion(each, -len(name)) for each in commands if each.startswith(name))
            elif name == "/set":
                yield from (Completion(each, -len(argument)) for each in settings() if each.startswith(argument))
            elif name in ("/load", "/save", "/image"):
                yield from paths.get_completions(Document(argument), complete_event)

    return Commands()


# Remembered messages


def history_file() -> Path:
    """Return the file of remembered messages, one a line; a message of several lines is a string of JSON."""
    return user_state() / "chat-history"


def _history(remember: bool) -> History:
    from prompt_toolkit.history import History, InMemoryHistory

    if not remember:
        return InMemoryHistory()

    class FileOfMessages(History):
        def load_history_strings(self) -> Iterable[str]:
            try:
                lines = read_regular(history_file(), MOST_BYTES).decode("utf-8", "replace").splitlines()
            except OSError:
                return ()  # the first chat, or another user's file
            return map(_remembered, lines[: -MOST_MESSAGES - 1 : -1])

        def store_string(self, string: str) -> None:
            remember_message(string)

    return FileOfMessages()


def remember_message(text: str) -> None:
    """Append a message, because another chat may have written its own; only the owner can read the file."""
    file = history_file()
    line = json.dumps(text) if "\n" in text or text.startswith('"') else text
    try:
        private_folder(file.parent, file.parent)
        flags = os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(file, flags, 0o600), "a", encoding="utf-8", errors="replace") as lines:
            lines.write(f"{line}\n")
    except OSError as error:
        err.print(f"[dim]What was typed is not remembered: {escape(str(file))}: {error.strerror}.[/]", soft_wrap=True)


def _remembered(line: str) -> str:
    try:
        text = json.loads(line) if line.startswith('"') else line
    except (ValueError, RecursionError):
        return line
    return text if isinstance(text, str) else line


@contextmanager
def keys_wait() -> Iterator[None]:
    """Keep what is typed before the next prompt for it, without showing it in the answer. Ctrl-C still interrupts."""
    before = termios.tcgetattr(sys.stdin)
    quiet = [*before]
    quiet[3] = quiet[3] & ~(termios.ECHO | termios.ICANON) | termios.NOFLSH
    termios.tcsetattr(sys.stdin, termios.TCSANOW, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSANOW, before)
