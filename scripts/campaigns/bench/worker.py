"""The process of one engine: a request a line on stdin, an answer a line on stdout, both JSON.

``{"do": "load"}``, ``{"do": "set_threads", "count": 2}``, ``{"do": "fill", "context": 128}`` and
``{"do": "measure", "what": {"name": "verify", "arguments": [8]}, "steps": 5}``. The answer is ``{"seconds": […]}``, one for
each step, or ``{"error": "…"}``.

Usage: python -m campaigns.bench.worker MODULE:CLASS OPTIONS_AS_JSON
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from typing import Any, Protocol

VERIFY, COMMIT, PREFILL, ROOM = 8, 4, 512, 1024
"""Tokens of a verify, of a commit and of a prefill; positions beyond the longest context that every engine is given."""


class Engine(Protocol):
    """One runtime with one model. What it cannot do raises NotImplementedError with the reason."""

    def load(self) -> None:
        """From the file to the first logits; imports are done before."""

    def set_threads(self, count: int) -> None:
        """Compute on ``count`` threads from now on."""

    def fill(self, context: int) -> None:
        """Go to a state of ``context`` tokens, whatever they are; called again and again."""

    def decode(self) -> None:
        """One token and its logits."""

    def verify(self, count: int) -> None:
        """Compute the logits of ``count`` tokens after the context."""

    def commit(self, count: int) -> None:
        """Accept ``count`` tokens of the verify right before."""

    def prefill(self, count: int) -> None:
        """``count`` tokens from an empty state, logits of the last."""


def tokens(count: int, vocabulary: int) -> list[int]:
    """Return the same tokens every time, spread over the vocabulary."""
    return [(7919 * (i + 1)) % vocabulary for i in range(count)]


def main(name: str, options: dict[str, Any]) -> None:
    """Answer until stdin ends. What native libraries print goes to stderr, not between the answers."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    module, _, cls = name.partition(":")
    engine: Engine = getattr(importlib.import_module(module), cls)(**options)
    print(json.dumps({"resident": resident()}), file=answers)
    for line in sys.stdin:
        try:
            answer = respond(engine, json.loads(line))
        except (Exception, SystemExit) as error:  # the driver makes a row of it
            answer = {"error": f"{type(error).__name__}: {error}".strip()}
        print(json.dumps(answer), file=answers)


def respond(engine: Engine, request: dict[str, Any]) -> dict[str, Any]:
    """Do what one request asks for; see the module."""
    do = request["do"]
    if do == "load":
        return {"seconds": [timed(engine.load)], "resident": resident()}
    if do == "set_threads":
        return {"seconds": [timed(engine.set_threads, request["count"])]}
    if do == "fill":
        return {"seconds": [timed(engine.fill, request["context"])]}
    return {"seconds": [measure(engine, request["what"]) for _ in range(request["steps"])]}


def measure(engine: Engine, what: dict[str, Any]) -> float:
    """Seconds of one step; a commit needs a verify before it, which does not count."""
    if what["name"] == "commit":
        engine.verify(VERIFY)
        return timed(engine.commit, COMMIT)
    return timed(getattr(engine, what["name"]), *what["arguments"])


def timed(call: Any, *arguments: int) -> float:
    """Seconds that a call takes, to the microsecond's tenth."""
    start = time.perf_counter()
    call(*arguments)
    return round(time.perf_counter() - start, 7)


def resident() -> int:
    """Bytes of this process in memory, mapped files that were read included."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
