"""Someone at a terminal who chats: types, and sees what is shown."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from screen import Screen

SCRIPT = Path(sys.executable).parent / "hybridge"


class Person:
    """home: for what the chat remembers."""

    def __init__(
        self, folder: Path, home: Path, *options: str, columns: int = 80, height: int = 24, term: str = "xterm"
    ) -> None:
        self.home, self.screen = home, Screen(columns, height)
        self.main, side = pty.openpty()
        fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", height, columns, 0, 0))
        environment = os.environ | {"XDG_STATE_HOME": str(home), "TERM": term, "PROMPT_TOOLKIT_NO_CPR": "1", "COLUMNS": ""}
        self.process = subprocess.Popen(
            [SCRIPT, "chat", folder, "--no-speculation", *options], stdin=side, stdout=side, stderr=side, env=environment,
            preexec_fn=_own_terminal,
        )  # fmt: skip
        os.close(side)
        self.seen = ""

    def sees(self, text: str) -> None:
        """Wait until the terminal has been sent ``text``, and forget all up to there."""
        self._read_until(lambda: text in self.seen)
        assert text in self.seen, self.screen.text
        self.seen = self.seen.partition(text)[2]

    def shows(self, text: str) -> None:
        """Wait until ``text`` is on the screen."""
        self._read_until(lambda: text in self.screen.text)
        assert text in self.screen.text, self.screen.text

    def _read_until(self, is_there: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not is_there() and time.monotonic() < deadline:
            if select.select([self.main], [], [], 1)[0]:
                try:
                    new = os.read(self.main, 65536).decode(errors="replace")
                except OSError:  # the process has ended
                    break
                self.screen.feed(new)
                self.seen += new

    def is_asked(self) -> None:
        """Wait for the prompt."""
        self.sees("\x1b[?2004h")

    def sees_an_answer(self) -> None:
        """Wait until an answer is shown, after the prompt is gone."""
        for each in ("\x1b[?2004l", "\x1b[?2004h", "\x1b[J"):
            self.sees(each)

    def types(self, text: str) -> None:
        os.write(self.main, text.encode())

    def pastes(self, text: str) -> None:
        """Paste as a terminal does that knows bracketed paste."""
        self.types(f"\x1b[200~{text.replace(chr(10), chr(13))}\x1b[201~")

    def resizes(self, columns: int, height: int) -> None:
        fcntl.ioctl(self.main, termios.TIOCSWINSZ, struct.pack("HHHH", height, columns, 0, 0))

    def interrupts(self) -> None:
        self.types("\x03")

    def leaves(self) -> None:
        self.types("/ex\t")  # Tab completes the command
        self.sees("it")
        self.types("\r")
        self.has_left()

    def has_left(self) -> None:
        assert self.process.wait(60) == 0, self.screen.text
        os.close(self.main)

    def is_killed(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(60)
        os.close(self.main)

    def kept(self) -> list[dict[str, Any]]:
        """The conversations that are kept, the newest one first, as their files have them."""
        files = sorted((self.home / "hybridge" / "chats").glob("*.json"), key=lambda each: -each.stat().st_mtime_ns)
        return [{"name": each.stem, **json.loads(each.read_text())} for each in files]

    def messages(self) -> list[dict[str, Any]]:
        """The messages of the newest conversation."""
        found: list[dict[str, Any]] = json.loads(self.kept()[0]["note"])["messages"]
        return found


def _own_terminal() -> None:
    """Make the terminal the process's own, so that its keys send signals."""
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
