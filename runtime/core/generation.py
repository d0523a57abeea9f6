"""A generation in the core, and the Python functions that it calls."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from ctypes import Array, byref, c_int64, c_uint64, pointer
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Literal

import numpy as np
from numpy.ctypeslib import as_array
from numpy.typing import NDArray

from hybridge.runtime.core.failures import failure
from hybridge.runtime.core.interface import (
    COUNTS,
    SECONDS,
    Counted,
    DrafterKind,
    GenerationOptions,
    OnClock,
    OnMask,
    OnPropose,
    OnRead,
    OnToken,
    SamplingOptions,
    Status,
)
from hybridge.runtime.core.library import load
from hybridge.runtime.core.model import Model
from hybridge.runtime.core.sampling import Sampling
from hybridge.runtime.core.token_ids import token_ids

Propose = Callable[[Sequence[int], int], Sequence[int]]
"""A drafter: the whole text, whose last token is not committed yet, and a limit ≥ 1, to at most so many draft tokens."""
Mask = Callable[[NDArray[np.int64], NDArray[np.float32]], None]
"""Takes the text and the logits [V] behind it, and makes those minus infinity whose tokens may not come. Views for the call."""
Watcher = Callable[[int], bool | None]
"""Takes each new token; False ends the generation behind it."""
DrafterChoice = Literal["lookup", "own"] | Model | Propose | None
"""Prompt lookup, the drafter inside the model, a smaller model, a function, or plain decoding."""


@dataclass(kw_only=True)
class Generated:
    """New tokens; counts and wall seconds as in ``GenerationStats``."""

    tokens: list[int] = field(default_factory=list)
    proposed: int = 0
    accepted: int = 0
    verifies: int = 0
    decodes: int = 0
    rollbacks: int = 0
    prefill_seconds: float = 0.0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    commit_seconds: float = 0.0
    decode_seconds: float = 0.0
    new_seconds: float = 0.0


@dataclass(kw_only=True)
class Wishes:
    """The options of one generation, as ``Session.generate`` describes them."""

    max_new_tokens: int
    block_length: int | None
    drafter: DrafterChoice
    sampling: Sampling
    on_token: Watcher | None
    on_read: Callable[[int], object] | None
    mask: Mask | None
    clock: Callable[[], float] | None
    noise: int | None


class Callbacks:
    """Python functions behind the core's pointers. The first error of one ends the generation, and is raised once it has ended.

    ctypes would print it and go on: there is nobody in between to hand it to.
    """

    def __init__(self, session: int, wishes: Wishes) -> None:
        self.session, self.wishes = session, wishes
        self.tokens: list[int] = []
        self.error: BaseException | None = None
        self._text: list[int] = []

    def fail(self, error: BaseException) -> None:
        """End the generation, and keep the first error."""
        self.error = self.error or error
        load().hybridge_cancel(self.session)

    def take(self, token: int, _: object) -> int:
        try:
            if self.error is not None:
                return 0
            self.tokens.append(token)
            wanted = self.wishes.on_token is None or self.wishes.on_token(token) is not False
            return int(wanted and self.error is None)
        except BaseException as error:
            self.fail(error)
            return 0

    def read(self, count: int, _: object) -> None:
        try:
            if self.wishes.on_read is not None:
                self.wishes.on_read(count)
        except BaseException as error:
            self.fail(error)

    def mask(self, text: Any, count: int, logits: Any, size: int, _: object) -> None:
        try:
            assert self.wishes.mask is not None
            self.wishes.mask(as_array(text, (count,)), as_array(logits, (size,)))
        except BaseException as error:
            self.fail(error)
            as_array(logits, (size,)).fill(-np.inf)  # no token may come any more

    def propose(self, text: Any, count: int, tokens: Any, limit: int, _: object) -> int:
        try:
            assert callable(self.wishes.drafter)
            self._text += text[len(self._text) : count]
            proposed = token_ids(self.wishes.drafter(self._text, limit))[:limit]
            for place, token in enumerate(proposed):
                tokens[place] = token if -(2**63) <= token < 2**63 else -1
            return len(proposed)
        except BaseException as error:
            self.fail(error)
            return 0

    def clock(self, _: object) -> float:
        try:
            assert self.wishes.clock is not None
            return float(self.wishes.clock())
        except BaseException as error:
            self.fail(error)
            return 0.0


def generate(session: int, prompt: Array[c_int64], wishes: Wishes) -> Generated:
    """Run a generation of the session with this handle.

    Raises the first error of a function that it called, what a signal's handler raised meanwhile, or what the core refuses.
    """
    calls, counted = Callbacks(session, wishes), Counted()
    options = GenerationOptions(
        max_new_tokens=wishes.max_new_tokens,
        block_length=wishes.block_length or 0,
        drafter=_kind(wishes.drafter),
        sampling=pointer(_sampling(wishes.sampling)),
        draft=wishes.drafter.handle if isinstance(wishes.drafter, Model) else 0,
        mask=OnMask(calls.mask) if wishes.mask else OnMask(),
        on_read=OnRead(calls.read),
        propose=OnPropose(calls.propose) if callable(wishes.drafter) else OnPropose(),
        clock=OnClock(calls.clock) if wishes.clock else OnClock(),
        noise=None if wishes.noise is None else pointer(c_uint64(wishes.noise)),
    )
    with _signals_wait(calls):
        status = load().hybridge_generate(
            session, prompt, len(prompt), byref(options), OnToken(calls.take), None, byref(counted)
        )
    if calls.error is not None:
        raise calls.error
    if status not in (Status.OK, Status.CANCELLED):
        raise failure("generate", status)
    numbers = {name: getattr(counted, name) for name in (*COUNTS[1:], *SECONDS)}
    return Generated(tokens=calls.tokens, **numbers)


def _kind(drafter: DrafterChoice) -> DrafterKind:
    match drafter:
        case None:
            return DrafterKind.NONE
        case "lookup":
            return DrafterKind.PROMPT_LOOKUP
        case "own":
            return DrafterKind.OWN
        case Model():
            return DrafterKind.MODEL
    return DrafterKind.CALLBACK


def _sampling(asked: Sampling) -> SamplingOptions:
    """The core reads a 0 as the value that leaves the distribution as it is, which is what these are then."""
    numbers = {name: getattr(asked, name) for name in ("temperature", "top_p", "min_p", "repetition_penalty")}
    top_k, seed = min(asked.top_k, 2**63 - 1), (asked.seed or 0) % 2**64  # ctypes would cut off what is more
    return SamplingOptions(**numbers, top_k=top_k, seed=seed, has_seed=asked.seed is not None)


@contextmanager
def _signals_wait(calls: Callbacks) -> Iterator[None]:
    """Let the handlers of Ctrl-C and SIGTERM end a generation between two tokens or chunks of its prompt, by what they raise.

    Python runs a handler as soon as the core calls back, before the function's first line: what it raised there would be lost.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # Python runs handlers in the main thread alone
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    running = True

    def handle(number: int, frame: FrameType | None) -> None:
        handler = before[signal.Signals(number)]
        assert callable(handler)
        try:
            handler(number, frame)
        except BaseException as error:
            if not running:  # another signal's handler raised before this one was put back
                raise
            calls.fail(error)

    handled = [number for number, handler in before.items() if callable(handler)]
    try:
        for number in handled:
            signal.signal(number, handle)
        yield
    finally:
        running = False
        for number in handled:
            signal.signal(number, before[number])
