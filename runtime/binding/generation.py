"""A generation in the core, a round at a time, and the Python functions that it calls."""

from __future__ import annotations

import itertools
import math
import operator
import signal
import struct
import threading
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from ctypes import Array, byref, c_int, c_int64, c_size_t, c_uint64, pointer
from dataclasses import dataclass, field
from functools import wraps
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from hybridge.errors import DraftError, UsageError
from hybridge.runtime.binding import interface
from hybridge.runtime.binding.drafters import AutoDrafter, Context, Drafter, DraftModel, Proposal, Proposer
from hybridge.runtime.binding.grammar import Follower
from hybridge.runtime.binding.interface import (
    BiasStruct,
    DevGenerationStruct,
    DrafterKind,
    GeneratedStruct,
    GenerationStruct,
    GrammarHandle,
    Handle,
    ModelHandle,
    OnClock,
    OnFitting,
    OnForced,
    OnMask,
    OnPropose,
    OnRead,
    OnWatch,
    SamplingStruct,
    Status,
)
from hybridge.runtime.binding.library import load, run
from hybridge.runtime.binding.model import Model
from hybridge.runtime.binding.sampling import RANGES, Sampling, core_ids, core_number, token_ids
from hybridge.runtime.binding.statistics import PHASES, GenerationStats, Phase

Until = Callable[[int], bool]
"""Called with each new token; True makes it the last."""
if TYPE_CHECKING:  # NumPy takes long to start
    import numpy as np
    from numpy.typing import NDArray

    Watch = Callable[[NDArray[np.float32], int], None]
else:
    Watch = Callable
"""Called with each new token of the text, in order, and with the model's logits [V] for its position, a view for the call."""

Counts = tuple[Any, ...]
NUMBERS = struct.Struct(f"{len(interface.COUNTS)}N{len(interface.SECONDS)}d")
"""The core's counts and seconds, which are read for each token: a field of a ctypes structure takes longer."""
_FIELDS = (*interface.COUNTS, *interface.SECONDS)
COUNTED: Sequence[tuple[int, str, Phase | None]] = [
    *((_FIELDS.index(name), name, None) for name in (*interface.COUNTS[1:], "new_seconds")),
    *((_FIELDS.index(f"{phase}_seconds"), f"{phase}_seconds", phase) for phase in PHASES),
]
"""Each of them by its place, with its phase if it is the seconds of one, in the order in which phases come."""

NUMBERS_OF_SAMPLING = tuple(RANGES)
_NUMBERS = itertools.count(1)
_DRAFTERS: weakref.WeakKeyDictionary[object, int] = weakref.WeakKeyDictionary()


@runtime_checkable
class Constraint(Protocol):
    """A grammar's view of one text, whose first token is the first new one of a generation."""

    def mask(self, logits: NDArray[np.float32]) -> None:
        """Make minus infinity of logits [V] for each token that may not come next."""

    def take(self, token: int) -> None:
        """Go on after ``token``, which may come next."""

    def forced(self) -> list[int]:
        """Return the tokens that must come next; none if the model has a choice."""

    def fitting(self, tokens: Sequence[int]) -> int:
        """Return how many of ``tokens``, from the first on, may come next."""


class Owner(Protocol):
    """A session, of which one generation runs at a time; generations counts those that were begun."""

    handle: Handle
    model: Model
    generations: int


@dataclass(kw_only=True)
class GenerationArguments:
    """The options of one generation, as ``Session.generate`` describes them. max_new_tokens: None for no limit."""

    max_new_tokens: int | None
    drafter: Drafter | None
    sampling: Sampling
    stats: GenerationStats
    block_length: int | None = None
    ends: Collection[int] = ()
    until: Until | None = None
    watch: Watch | None = None
    constraint: Constraint | None = None
    clock: Callable[[], float] | None = None
    noise: int | None = None
    stop_after_reasoning: bool = False


def _reporting(otherwise: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Let a callback keep what it raises as the generation's error, and answer ``otherwise``."""

    def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(self: Callbacks, *arguments: Any) -> Any:
            try:
                return function(self, *arguments)
            except BaseException as error:
                self.fail(error)
                return otherwise

        return call

    return wrapped


@dataclass
class Callbacks:
    """Python functions behind the core's pointers. The first error of one ends the generation, and is raised once it has ended.

    ctypes would print it and continue: no Python frame in between could take it.
    """

    session: Handle
    vocab_size: int
    arguments: GenerationArguments
    tell: Callable[[BaseException], object] | None = None
    error: BaseException | None = None
    _context: Context = field(init=False)

    def __post_init__(self) -> None:
        self._context = Context([], self.arguments.sampling)
        self._taken = 0

    def fail(self, error: BaseException) -> None:
        """End the generation, and keep the first error."""
        self.error = self.error or error
        if self.tell is not None:
            self.tell(error)
        load().hybridge_cancel(self.session)

    def read(self, count: int, _: object) -> None:
        """Give the handlers of signals their turn between two chunks of a prompt; one may have raised before the call began."""
        if self.error is not None:
            load().hybridge_cancel(self.session)

    @_reporting(0)
    def propose(self, seen: Any, written: Any, limit: int, _: object) -> int:
        drafter, given = self._asked(), seen.contents
        assert isinstance(drafter, Proposer)
        self._context.tokens += given.text[len(self._context.tokens) : given.count]
        if given.rows:
            self._context.add_hidden(_array(given.hidden, (given.rows, given.width)))
        proposal = drafter.propose(self._context, limit)
        if not isinstance(proposal, Proposal):
            raise DraftError(
                f"{type(drafter).__name__}.propose returned {type(proposal).__name__}, but must return a Proposal."
            )
        tokens, out = token_ids(proposal.tokens)[:limit], written.contents
        _write(tokens, out.tokens)
        free = () if proposal.confidence is None else (proposal.confidence,)
        confidences = free if drafter.is_cheap else tuple(proposal.confidences or ())[: len(tokens)]
        for place, confidence in enumerate(confidences):
            out.confidences[place] = float(confidence)
        out.confidence_count = len(confidences)
        return len(tokens)

    @_reporting(None)
    def watch(self, token: int, logits: Any, size: int, _: object) -> None:
        assert self.arguments.watch is not None
        self.arguments.watch(_array(logits, (size,)), token)

    @_reporting(0.0)
    def clock(self, _: object) -> float:
        assert self.arguments.clock is not None
        return float(self.arguments.clock())

    # The constraint, which follows the text

    def mask(self, text: Any, count: int, logits: Any, size: int, _: object) -> None:
        try:
            self._follow(text, count).mask(_array(logits, (size,)))
        except BaseException as error:
            self.fail(error)
            _array(logits, (size,)).fill(-math.inf)  # no token may come any more

    @_reporting(0)
    def forced(self, text: Any, count: int, tokens: Any, limit: int, _: object) -> int:
        found = token_ids(self._follow(text, count).forced())[:limit]
        _write(found, tokens)
        return len(found)

    @_reporting(0)
    def fitting(self, text: Any, count: int, proposed: Any, proposals: int, _: object) -> int:
        return max(operator.index(self._follow(text, count).fitting(proposed[:proposals])), 0)

    def _follow(self, text: Any, count: int) -> Constraint:
        constraint = self.arguments.constraint
        assert constraint is not None
        if not self._taken:
            self._taken = count  # the prompt is no part of what it follows
        for token in text[self._taken : count]:
            constraint.take(token)
        self._taken = count
        return constraint

    def _asked(self) -> Drafter | None:
        """Return the drafter that is a draft model or written in Python, if there is one."""
        drafter = self.arguments.drafter
        return drafter.beside if isinstance(drafter, AutoDrafter) else drafter

    def options(self) -> GenerationStruct:
        """Return the options for the core."""
        arguments, drafter = self.arguments, self._asked()
        followed = arguments.constraint if isinstance(arguments.constraint, Follower) else None
        constrained = arguments.constraint is not None and followed is None
        written = _kind(drafter) == DrafterKind.CALLBACK
        dev = DevGenerationStruct(
            forced=OnForced(self.forced) if constrained else OnForced(),
            fitting=OnFitting(self.fitting) if constrained else OnFitting(),
            watch=OnWatch(self.watch) if arguments.watch else OnWatch(),
            clock=OnClock(self.clock) if arguments.clock else OnClock(),
            noise=None if arguments.noise is None else pointer(c_uint64(arguments.noise)),
        )
        most = 2**63 - 1  # ctypes would cut off what is more
        return GenerationStruct(
            max_new_tokens=most if arguments.max_new_tokens is None else min(max(arguments.max_new_tokens, 0), most),
            block_length=arguments.block_length or 0,
            drafter=_kind(arguments.drafter),
            sampling=pointer(_sampling(arguments.sampling)),
            draft=drafter.model.handle if isinstance(drafter, DraftModel) else ModelHandle(),
            mask=OnMask(self.mask) if constrained else OnMask(),
            on_read=OnRead(self.read),
            propose=OnPropose(self.propose) if written else OnPropose(),
            drafter_id=_number_of(drafter) if written else 0,
            reads_hidden=written and isinstance(drafter, Proposer) and drafter.needs_hidden,
            is_cheap=written and isinstance(drafter, Proposer) and drafter.is_cheap,
            stop_after_reasoning=arguments.stop_after_reasoning,
            grammar=followed.handle if followed is not None else GrammarHandle(),
            dev=pointer(dev),
        )


class Generation:
    """A generation of a session, which lives as long as it; the text is to be left alone until the end."""

    def __init__(self, session: Owner, prompt: Array[c_int64], arguments: GenerationArguments) -> None:
        """Read the prompt.

        Raises the first error of a function that it called, what a signal's handler raised meanwhile, or what the core refuses.
        """
        self.session, self.arguments = session, arguments
        self._handle, self._model = session.handle, session.model
        session.generations += 1
        self._number = session.generations
        self._calls = Callbacks(self._handle, self._model.vocab_size, arguments)
        self._options = self._calls.options()
        self._calls_back = self._model.program is not None or any(
            (self._options.mask, arguments.watch, arguments.clock, self._options.propose)
        )
        self._room = (c_int64 * self._model.verify_len)()
        self._counted, self._counter, self._verifies = GeneratedStruct(), c_size_t(), 0
        self._before = NUMBERS.unpack(self._counted)
        arguments.stats.prompt_tokens += len(prompt)
        self._first = self._step("begin", prompt, len(prompt), byref(self._options), None)

    def tokens(self) -> Iterator[int]:
        """Yield the tokens. Once it is closed or done, the session's text ends just before the last one."""
        given, drafted, forced = self._first, 0, False
        stats, until, yielded = self.arguments.stats, self.arguments.until, 0
        try:
            while given:
                for number, token in enumerate(given, 1):
                    own = not drafted or number == len(given)  # a block's last token is the model's own
                    stats.origin = "own" if own else "forced" if forced else "draft"
                    stats.new_tokens += 1
                    yielded += 1
                    last = token in self.arguments.ends or (until is not None and until(token))
                    yield token
                    if last:
                        return
                if not self._is_running():
                    raise UsageError("the session's text was changed while the generation waited; begin another.")
                given = self._step("next")
                drafted, forced = self._note_block(len(given))
        finally:
            self._end(yielded)

    def _is_running(self) -> bool:
        """Return whether the core's generation is still this one: another of the session ends it."""
        return self.session.generations == self._number

    def _step(self, call: str, *arguments: Any) -> list[int]:
        with self._signals_wait(call):
            count = self._counter
            status = getattr(load(), f"hybridge_{call}")(self._handle, *arguments, self._room, len(self._room), byref(count))
            failed = self._model.reason(status) if status else None  # in the words of this call, before another
            if not load().hybridge_progress(self._handle, byref(self._counted)):
                self._count()
            if error := self._calls.error or failed or self._model.raised():
                raise error
            return self._room[: count.value]

    def _signals_wait(self, call: str) -> AbstractContextManager[None]:
        """Return the context for a call of the core: signals wait if it calls functions of Python."""
        return signals_wait(self._calls.fail) if self._calls_back or call == "begin" else nullcontext()

    def _note_block(self, given: int) -> tuple[int, bool]:
        """Return how many draft tokens were verified for the tokens that came, and whether they were forced."""
        if self._counted.verifies == self._verifies or not given:
            return 0, False
        self._verifies = self._counted.verifies
        drafted, count, forced = (c_int64 * len(self._room))(), self._counter, c_int()
        load().hybridge_proposed(self._handle, drafted, len(drafted), byref(count), byref(forced))
        self.arguments.stats.add_block(self.arguments.stats.new_tokens, drafted[: count.value], given - 1, bool(forced.value))
        return count.value, bool(forced.value)

    def _count(self) -> None:
        """Add to the statistics what was done since they were added to."""
        self._before = add_counts(self.arguments.stats, self._counted, self._before)

    def _end(self, yielded: int) -> None:
        """Commit the yielded tokens; do nothing if something else has ended the generation."""
        if not self._is_running() or load().hybridge_progress(self._handle, byref(self._counted)):
            return
        with self._signals_wait("end"):
            status = load().hybridge_end(self._handle, max(yielded - self._counted.tokens, 0), byref(self._counted))
            if status == Status.OK:
                self._count()
            elif status not in (Status.INVALID_STATE, Status.INVALID_HANDLE):
                raise self._model.reason(status)


def add_counts(stats: GenerationStats, counted: GeneratedStruct, before: Counts | None = None) -> Counts:
    """Add the core's counts and seconds to statistics, as far as they are more than ``before``; return them."""
    now = NUMBERS.unpack(counted)
    for place, name, phase in COUNTED:
        if (added := now[place] - (before[place] if before is not None else 0)) and phase is not None:
            stats.add_seconds(phase, added)
        elif added:
            setattr(stats, name, getattr(stats, name) + added)
    return now


def _write(tokens: Sequence[int], to: Any) -> None:
    """Write token ids; one of more than 64 bits, which ctypes would cut off, as one outside any vocabulary."""
    for place, token in enumerate(tokens):
        to[place] = token if -(2**63) <= token < 2**63 else -1


def _array(numbers: Any, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Return a view of the core's numbers."""
    from numpy.ctypeslib import as_array

    return as_array(numbers, shape)


def _kind(drafter: Drafter | None) -> DrafterKind:
    if drafter is None:
        return DrafterKind.NONE
    kind: DrafterKind = getattr(drafter, "kind", DrafterKind.CALLBACK)
    return kind


def _number_of(drafter: Drafter | None) -> int:
    """Return a number by which a session remembers a drafter; 0 for one that cannot be distinguished from others."""
    try:
        return _DRAFTERS.setdefault(drafter, next(_NUMBERS))
    except TypeError:
        return 0


def _sampling(asked: Sampling) -> SamplingStruct:
    """Return the structure for the core."""
    most = 2**63 - 1  # ctypes would cut off what is more
    biases = [BiasStruct(core_number(token), bias) for token, bias in asked.logit_bias.items()]
    return SamplingStruct(
        **{name: getattr(asked, name) for name in NUMBERS_OF_SAMPLING},
        **{name: min(getattr(asked, name), most) for name in ("top_k", "repeat_last_n", "dry_allowed_length")},
        seed=(asked.seed or 0) % 2**64, has_seed=asked.seed is not None,
        dry_breakers=core_ids(asked.dry_breakers), dry_breaker_count=len(asked.dry_breakers),
        logit_bias=(BiasStruct * len(biases))(*biases), bias_count=len(biases),
    )  # fmt: skip


def read_sampling(config: bytes) -> Sampling:
    """Return how a model is meant to be sampled, by its generation_config.json. Raises ArtifactError."""
    found = SamplingStruct()
    run("sampling_read", config, len(config), byref(found))
    return Sampling(top_k=found.top_k, **{name: getattr(found, name) for name in NUMBERS_OF_SAMPLING})


@contextmanager
def signals_wait(fail: Callable[[BaseException], None]) -> Iterator[None]:
    """Keep what handlers of Ctrl-C and SIGTERM raise until the body is done, and give it to ``fail`` at once.

    Python runs a handler as soon as the core calls back, before the function's first line: what it raised there would be lost,
    or end a call of the program in the middle.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # Python runs handlers in the main thread alone
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    handled = {number: handler for number, handler in before.items() if callable(handler)}
    caught: list[BaseException] = []

    def handle(number: int, frame: FrameType | None) -> None:
        try:
            handled[signal.Signals(number)](number, frame)
        except BaseException as error:
            caught.append(error)
            fail(error)

    try:
        for number in handled:
            signal.signal(number, handle)
        yield
    finally:
        try:
            for number in handled:
                signal.signal(number, handled[number])
        finally:
            for number in handled:  # once more, should the first one have been interrupted
                signal.signal(number, handled[number])
    if caught:
        raise caught[0]
