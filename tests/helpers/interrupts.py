"""Ctrl-C at any place of our own code: between two lines, or between two instructions of one."""

from __future__ import annotations

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
BOOKKEEPING = ("session.py", "unfinished.py", "committed_text.py", "one_thread.py")


@cache
def is_ours(file: str, by_instruction: bool) -> bool:
    """Whether to strike there; between instructions only in what keeps the books."""
    path = Path(file).resolve()
    return str(path).startswith(OURS) and (not by_instruction or path.name in BOOKKEEPING)


class Interrupt:
    """Runs a call and raises KeyboardInterrupt at its ``strike``-th place; counts the places where it is never reached."""

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
                raise KeyboardInterrupt
        return self._step
