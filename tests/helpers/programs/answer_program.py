"""The program tests/native/answers.cpp, which reads answers by the core's forms."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from native_programs import native_program
from scripted import TOOLS

Answer = tuple[str, str, list[Any]]
"""Content, reasoning, and calls as pairs of a name and arguments."""
CHATML = "<|im_start|>assistant\n"


class AnswerProgram:
    """The running program, which its user closes."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [native_program("answers")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
        )

    def ask(self, **request: Any) -> dict[str, Any]:
        """Return the program's answer to one request."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"prompt": "", "tools": None, "pieces": [], **request}) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def read(self, form: str, pieces: Sequence[str], prompt: str = CHATML, tools: Any = TOOLS, **request: Any) -> Answer:
        """Return the parts of an answer that comes in pieces. form: its name in the table; "" for that of ``request``."""
        offered = json.dumps(tools) if tools else None
        said = self.ask(form=form or None, prompt=prompt, pieces=pieces, tools=offered, **request)
        events = [event for each in said["events"] for event in each]
        text = {kind: "".join(text for each, text, _ in events if each == kind) for kind in ("content", "reasoning")}
        calls = [(name, json.loads(arguments)) for kind, name, arguments in events if kind == "call"]
        return text["content"], text["reasoning"], calls

    def close(self) -> None:
        """End the program. It must not have failed."""
        self._process.communicate(timeout=30)
        assert self._process.returncode == 0


def cut(text: str, places: Sequence[int]) -> list[str]:
    """Return a text cut at places."""
    return [text[a:b] for a, b in pairwise([0, *sorted(places), len(text)])]
