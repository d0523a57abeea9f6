"""A process beside this one that renders chat templates, and is ended where one takes too long."""

from __future__ import annotations

import atexit
import json
import select
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

PROGRAM = Path(__file__).with_name("template_program.py")
SECONDS = 5
"""That rendering may take; a template of a real model takes a thousandth."""
MEMORY = 512 << 20
"""Bytes of memory that it may take, and 32 for each byte of the request."""
CHARACTERS = 16 << 20
"""Characters that it may make, and 4 for each byte of the request."""


class RenderError(Exception):
    """The template could not be rendered; the message says why. line: where its syntax is wrong, if it is that."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.line = line


class TemplateProcess:
    """Renders one template at a time. The process begins with the first, and again after one that had to be ended."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        atexit.register(self.close)

    def render(self, template: str, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]) -> str:
        """Return the text of ``messages`` up to where the assistant speaks. Raises RenderError."""
        body = json.dumps({"template": template, "messages": messages, "variables": variables}, default=_placeholder).encode()
        limits = {
            "memory": MEMORY + 32 * len(body),
            "characters": CHARACTERS + 4 * len(body),
            "seconds": int(self._seconds) + 1,
        }
        line = b"%b, %b\n" % (body[:-1], json.dumps(limits).encode()[1:])
        if not self._lock.acquire(timeout=self._seconds):
            raise RenderError(f"other conversations have kept it busy for {self._seconds:g} seconds")
        try:
            answer = self._ask(line)
        except BaseException:  # a KeyboardInterrupt too: what is half asked is not to be answered to the next
            self._end()
            raise
        finally:
            self._lock.release()
        if "text" in answer:
            return str(answer["text"])
        raise RenderError(str(answer.get("syntax", answer.get("error"))), answer.get("line"))

    def close(self) -> None:
        """End the process; what is being rendered fails."""
        self._end()

    def _ask(self, line: bytes) -> dict[str, Any]:
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(line)
            process.stdin.flush()
        except OSError:
            raise RenderError("its process has ended") from None
        poll, end, pieces = select.poll(), monotonic() + self._seconds, list[bytes]()
        poll.register(process.stdout, select.POLLIN)
        while not pieces or not pieces[-1].endswith(b"\n"):
            if not poll.poll(max(0.0, end - monotonic()) * 1000):
                raise RenderError(f"it takes longer than {self._seconds:g} seconds")
            pieces.append(process.stdout.read1(1 << 20))  # type: ignore[attr-defined]
            if not pieces[-1]:
                raise RenderError("its process has ended: it takes too much memory, or nests too deep")
        answer: dict[str, Any] = json.loads(b"".join(pieces))
        return answer

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self._end()
            paths = json.dumps([path for path in sys.path if path])
            self._process = subprocess.Popen(  # noqa: S603  # this interpreter, and a file of ours
                [sys.executable, "-I", str(PROGRAM), paths], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL, start_new_session=True,  # a terminal's Ctrl-C is for this process alone
            )  # fmt: skip
        return self._process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            try:
                assert pipe is not None
                pipe.close()
            except OSError:  # what was not written any more
                continue


def _placeholder(value: Any) -> str:
    """Return what templates see of what is no JSON."""
    return f"<{type(value).__name__}>"
