"""Ask a client that runs in a process of its own by lines of JSON on stdin, one answer each on stdout.

``[count, [number, ...]]`` continues a text by at most ``count`` tokens and is answered by the new numbers, ``[number, ...]``;
``[0, []]`` starts afresh and is answered by ``[]``. Numbers are token ids, or bytes of UTF-8 where a client takes text.

The programs beside this file import nothing of hybridge: they run in environments that have the client alone.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import IO


def serve(generate: Callable[[list[int], int], list[int]], reset: Callable[[], object], answers: IO[str]) -> None:
    """Answer every line of stdin; an error of the client ends the process."""
    for line in sys.stdin:
        count, numbers = json.loads(line)
        if count == 0:
            reset()
        answers.write(f"{generate(numbers, count) if count else []}\n")
        answers.flush()


def claim_stdout() -> IO[str]:
    """Return where answers go; what libraries print goes to stderr from now on."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return answers
