"""Ctrl-C at any place of our own code: between two lines, or between two instructions of one.

It is a real signal, whose handler runs there: where the code keeps signals waiting, they wait.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import hybridge.cache
import hybridge.export
import hybridge.runtime

OURS = tuple(str(Path(each.__file__).resolve().parent) for each in (hybridge.cache, hybridge.export, hybridge.runtime))
BOOKKEEPING = ("session.py", "generation.py")


@cache
def is_ours(file: str, by_instruction: bool) -> bool:
    """Whether to strike there; between instructions only in what keeps the books."""
    path = Path(file).resolve()
    return str(path).startswith(OURS) and (not by_instruction or path.name in BOOKKEEPING)


class Interrupt:
    """Runs a call and presses Ctrl-C at its ``strike``-th place; counts the places where it is never reached."""

    def __init__(self, strike: int, by_instruction: bool = False) -> None:
        self.strike, self.event, self.by_instruction = strike, "opcode" if by_instruction else "line", by_instruction
        self.places = 0

    def struck(self, call: Callable[[], object]) -> bool:
        """Whether the call was interrupted."""
        before = sys.gettrace()
        # CPython 3.12 looks at this when a trace begins: set in a frame that is traced, it counts from the next trace on.
        sys._getframe().f_trace_opcodes = self.by_instruction
        sys.settrace(self._enter)
        try:
            call()
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(before)
        assert self.strike < 0 or self.places < self.strike, "nobody raised what the handler did"
        return False

    def _enter(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not is_ours(frame.f_code.co_filename, self.by_instruction):
            return None
        frame.f_trace_opcodes = self.by_instruction
        return self._step

    def _step(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == self.event:
            self.places += 1
            if self.places == self.strike:
                signal.raise_signal(signal.SIGINT)
        return self._step
