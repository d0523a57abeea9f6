"""Keep what the native libraries log off the terminal.

ExecuTorch logs what it reads about the processor, and every step of a load that fails, straight to file descriptor 2. There is
no switch for that, so the descriptor is led into a file meanwhile, and all that is no line of such a log is then passed on.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO

LOG_LINE = re.compile(rb"(?:\[\w+\.(?:cpp|h):\d+\]|(?:Error|Warning) in cpuinfo:) [^\n]*\n")
"""A line of ExecuTorch's log or of cpuinfo's, wherever it begins: another thread may have left a line unfinished."""


class _Redirection:
    """Redirection of standard error into a file, while it has users."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._terminal = -1
        self._file: IO[bytes] | None = None

    def enter(self) -> None:
        """Redirect, unless another thread or an outer block has done so."""
        with self._lock:
            if self._users == 0:
                self._begin()
            self._users += 1

    def leave(self) -> None:
        """Restore standard error after the last user."""
        with self._lock:
            self._users -= 1
            if self._users == 0:
                self._end()

    def _begin(self) -> None:
        _flush()
        with suppress(OSError):  # if standard error is closed or no file can be made, the log is shown
            self._file = tempfile.TemporaryFile()  # noqa: SIM115  closed by _end
            self._terminal = os.dup(2)
            os.dup2(self._file.fileno(), 2)

    def _end(self) -> None:
        if self._file is None:
            return
        _flush()
        if self._terminal >= 0:
            os.dup2(self._terminal, 2)
            os.close(self._terminal)
        with self._file as file:
            file.seek(0)
            rest = LOG_LINE.sub(b"", file.read())
        self._file, self._terminal = None, -1
        _write(rest)


_REDIRECTION = _Redirection()  # one for the process, as its standard error is


@contextmanager
def without_native_log() -> Iterator[None]:
    """Run a block without the log lines of native libraries; it may be nested, and overlap with others in other threads.

    Standard error is one for all threads: what others write meanwhile comes when the last such block ends, unless it looks like
    a log line, and a process that is started meanwhile keeps the redirection. So let it be around loads alone, never around the
    running of a program.
    """
    _REDIRECTION.enter()
    try:
        yield
    finally:
        _REDIRECTION.leave()


def _flush() -> None:
    with suppress(OSError, ValueError):  # its other end may be gone, or it may be closed
        if sys.stderr is not None:
            sys.stderr.flush()


def _write(content: bytes) -> None:
    with suppress(OSError):
        while content:
            content = content[os.write(2, content) :]


def first_line(error: Exception) -> str:
    """Return the first line of a native error, without those about its origin."""
    return str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__
