"""A running ``hybridge serve``, and one who asks it."""

from __future__ import annotations

import http.client
import json
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

COMMAND = Path(sys.executable).parent / "hybridge"
Row = tuple[str, str, str]
"""What was measured, the figure, and its target."""


class Running:
    """A server that answers at ``port``."""

    def __init__(self, port: int, process: subprocess.Popen[str]) -> None:
        self.port, self.process = port, process

    def ask(self, messages: list[dict[str, str]], most: int = 1, **options: Any) -> tuple[float, float, str, dict[str, Any]]:
        """Return the seconds to the first text and in all, the text, and what was counted."""
        body = {"messages": messages, "max_tokens": most, "stream": True, "stream_options": {"include_usage": True}, **options}
        began = time.perf_counter()
        connection = self.send(json.dumps(body))
        first, text, usage = 0.0, "", dict[str, Any]()
        for line in connection.getresponse():
            if not line.startswith(b"data: {"):
                continue
            chunk = json.loads(line[6:])
            assert "error" not in chunk, chunk
            delta = chunk["choices"][0]["delta"] if chunk["choices"] else {}
            text += delta.get("content") or ""
            if "content" in delta and "role" not in delta:
                first = first or time.perf_counter() - began
            usage = chunk.get("usage") or usage
        connection.close()
        seconds = time.perf_counter() - began
        return first or seconds, seconds, text, usage

    def send(self, body: str) -> http.client.HTTPConnection:
        """Send a body to ``/v1/chat/completions``."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=1200)
        connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
        return connection

    def resident(self) -> int:
        """Return the bytes of the server's memory that are there."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) * 1024


@contextmanager
def serving(artifact: Path, *words: object) -> Iterator[Running]:
    """Serve an artifact. words: options of ``hybridge serve``."""
    command = [COMMAND, "serve", artifact, "--port", 0, "--queue", 64, "--timeout", 3600, *words]
    with subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            said = ""
            while (found := re.search(r"http://[\d.]+:(\d+)/v1", said)) is None:
                line = process.stderr.readline()
                assert line, f"the server did not start: {said}"
                said += line
            yield Running(int(found[1]), process)
        finally:
            process.send_signal(signal.SIGINT)
            process.wait()


def words(tokens: int, seed: int) -> str:
    """Text of about so many bytes."""
    rng = random.Random(seed)
    lines = (f"x{rng.randrange(999)} = f(y{rng.randrange(999)})\n" for _ in range(tokens))
    return "".join(lines)[:tokens]


def conversation(tokens: int, seed: int) -> list[dict[str, str]]:
    """A conversation of about so many bytes, the user's message last."""
    part = tokens // 3
    return [
        {"role": "user", "content": words(part, seed)},
        {"role": "assistant", "content": words(part, seed + 1)},
        {"role": "user", "content": words(part, seed + 2)},
    ]
