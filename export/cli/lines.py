"""Lines that a person types: edited and remembered where there is a terminal, and read as they are where there is none."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from rich.markup import escape

from hybridge.export.cli.common import err
from hybridge.runtime.files.private import private_folder

PROMPT = "> "
MOST_LINES = 1000


class Lines:
    """Reads one line after the other. editor: Python's readline, which ``input`` uses from then on; none without a terminal."""

    def __init__(self, editor: ModuleType | None = None) -> None:
        self.editor = editor
        self.read_lines = 0

    def read(self) -> str:
        """Return the next line. Raises EOFError where there is none."""
        if self.editor is None:
            err.print(f"[bold]{PROMPT}[/]", end="")
            return input()
        line = input(PROMPT)  # readline must know the prompt, to move the cursor behind it
        self.read_lines += bool(line)
        return line


@contextmanager
def lines(words: Sequence[str], *, remember: bool) -> Iterator[Lines]:
    """Yield the lines of stdin. On a terminal Tab completes ``words``, and earlier lines come back if they are remembered."""
    editor = _editor() if sys.stdin.isatty() and sys.stdout.isatty() else None
    read = Lines(editor)
    if editor is None:
        yield read
        return
    _complete(editor, words)
    if remember:
        _load(editor)
    try:
        yield read
    finally:
        if remember:
            _save(editor, read.read_lines)


def history_file() -> Path:
    """Return where lines are remembered: in ``hybridge`` of the user's folder for the state of programs."""
    root = os.environ.get("XDG_STATE_HOME")
    return (Path(root) if root else Path.home() / ".local" / "state") / "hybridge" / "chat-history"


def _editor() -> ModuleType | None:
    """Some builds of Python have none: then lines are read without editing."""
    try:
        import readline
    except ImportError:
        return None
    return readline


def _complete(editor: ModuleType, words: Sequence[str]) -> None:
    def completed(beginning: str, number: int) -> str | None:
        found = [word for word in words if beginning.startswith("/") and word.startswith(beginning)]
        return found[number] if number < len(found) else None

    editor.set_completer_delims(" \t\n")  # the slash is a part of a command
    editor.set_completer(completed)
    # macOS has editline in its place, with settings of its own.
    editor.parse_and_bind("bind ^I rl_complete" if "libedit" in (editor.__doc__ or "") else "tab: complete")


def _load(editor: ModuleType) -> None:
    editor.set_auto_history(True)
    try:
        editor.read_history_file(history_file())
    except OSError:
        return  # the first chat, or a file that is somebody else's


def _save(editor: ModuleType, new: int) -> None:
    """Append the new lines, for its owner alone: another chat may have written its own meanwhile."""
    file = history_file()
    try:
        private_folder(file.parent, file.parent)
        os.close(os.open(file, os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        editor.set_history_length(MOST_LINES)
        editor.append_history_file(new, file)
    except OSError as error:
        err.print(f"[dim]What was typed is not remembered: {escape(str(file))}: {error.strerror}.[/]", soft_wrap=True)
