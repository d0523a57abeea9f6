"""One thread that computes: several generations take turns, a token or a chunk of a prompt each."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from math import inf
from time import monotonic

import numpy as np
from numpy.typing import NDArray

from hybridge.cache.errors import HybridgeError
from hybridge.runtime.core.checkpoint import PrefixCache, Reading, keep
from hybridge.runtime.core.drafters import Drafter
from hybridge.runtime.core.generation import Constraint
from hybridge.runtime.core.sampling import Sampling
from hybridge.runtime.core.session import Session
from hybridge.runtime.core.statistics import GenerationStats, Origin
from hybridge.runtime.server.connections import Limits
from hybridge.runtime.server.requests import ApiError, of_hybridge
from hybridge.runtime.text.text_stream import Decoder, TextStream

log = logging.getLogger(__name__)


@dataclass
class Running:
    """A job, the place that it computes in, and what is left to do."""

    job: Job
    place: Place
    steps: Generator[None, None, None]


class Worker:
    """Runs jobs over places: as many at a time as there are places, the others wait in the order in which they came."""

    def __init__(self, places: Sequence[Place], cache: PrefixCache, metrics: Metrics, queue: int) -> None:
        """places: those that were used least recently come first. queue: how many jobs may wait."""
        self.cache, self.metrics, self.queue = cache, metrics, queue
        self._free = list(places)
        self._running: list[Running] = []
        self._waiting: deque[Job] = deque()
        self._changed = threading.Condition()
        self._ends = False
        self._thread = threading.Thread(target=self._work, name="hybridge-worker", daemon=True)

    def start(self) -> None:
        """Begin to compute."""
        self._thread.start()

    def stop(self) -> None:
        """Fail the jobs that are there, and end once the call that runs is done."""
        with self._changed:
            self._ends = True
            self._changed.notify()
        self._thread.join()

    def submit(self, job: Job) -> None:
        """Let a job wait for its turn. Raises ApiError where too many do."""
        with self._changed:
            if self._ends:
                raise ApiError(503, "the server is stopping.", "server_error")
            if len(self._waiting) >= self.queue + len(self._free):
                raise ApiError(
                    429, f"{len(self._waiting)} requests wait already; try again later.", "rate_limit_error", code="queue_full"
                )
            self._waiting.append(job)
            self._count()
            self._changed.notify()

    def _work(self) -> None:
        while self._admit():
            for running in list(self._running):
                self._step(running)
        for running in list(self._running):
            self._fail(running, ApiError(503, "the server is stopping.", "server_error"))
        for job in self._waiting:
            job.fail(ApiError(503, "the server is stopping.", "server_error"))

    def _admit(self) -> bool:
        """Give free places to jobs that wait, once there is something to do; returns False at the end."""
        with self._changed:
            while not (self._ends or self._running or self._waiting):
                self._changed.wait()
            while self._free and self._waiting and not self._ends:
                job = self._waiting.popleft()
                if (error := job.given_up()) is not None:
                    job.fail(error)
                    continue
                place = max(self._free, key=lambda place: place.known(job.prompt))  # the first of equal ones
                self._free.remove(place)
                self._running.append(Running(job, place, job.steps(place, self.cache)))
                self._count()
            return not self._ends

    def _step(self, running: Running) -> None:
        """Let a job have its turn; whatever happens in it is its own affair."""
        if (reason := running.job.given_up()) is not None:
            self._fail(running, reason)
            return
        try:
            next(running.steps)
        except StopIteration:
            self._end(running)
        except HybridgeError as error:
            self._fail(running, of_hybridge(error))
        except Exception as error:
            log.error("a generation failed: %s", type(error).__name__)  # what the exception says may be a client's text
            self._fail(running, ApiError(500, "the generation failed; the server's log says why.", "server_error"))

    def _fail(self, running: Running, error: ApiError) -> None:
        try:
            running.steps.close()  # commits what was given out
        except Exception:
            running.place.session.reset()
        running.job.fail(error)
        self._end(running)

    def _end(self, running: Running) -> None:
        """Keep the state that a job leaves, and give its place back."""
        session = running.place.session
        try:
            if session.length:
                keep(session, self.cache)
        except HybridgeError:
            session.reset()
        with self._changed:
            self._running.remove(running)
            self._free.append(running.place)
            self._count()

    def _count(self) -> None:
        self.metrics.set("running", len(self._running))
        self.metrics.set("waiting", len(self._waiting))
        self.metrics.set("cache_bytes", self.cache.nbytes)


# A generation that was asked for: reads its prompt and hands out its text, step by step.


@dataclass(frozen=True)
class Place:
    """A session over the loaded artifact, and its drafter."""

    session: Session
    drafter: Drafter | None

    def known(self, prompt: list[int]) -> int:
        """Return how many tokens of the prompt its session has read, if it has read nothing else."""
        tokens = self.session.tokens
        return len(tokens) if prompt[: len(tokens)] == tokens else 0


@dataclass(frozen=True)
class Chance:
    """The logarithm of a token's probability, and those of the most likely ones at its place."""

    token: int
    logprob: float
    best: list[tuple[int, float]]


@dataclass(frozen=True)
class Piece:
    """Text that became complete, and the tokens since the last piece; they have chances if the job asked for them.

    origin: where the last of the tokens comes from.
    """

    text: str
    tokens: list[int]
    chances: list[Chance]
    origin: Origin = "own"


@dataclass(frozen=True)
class Finished:
    """The end of a text. reason: stop or length; known: tokens of the prompt that were not read again."""

    reason: str
    known: int
    stats: GenerationStats


Event = Piece | Finished | ApiError


@dataclass(eq=False)
class Job:
    """prompt: tokens; marks: lengths of the prompt at which others may go another way; chances: how many best tokens to tell.

    emit: takes each event, on the worker's thread; Finished or an ApiError is the last. deadline: by ``time.monotonic``.
    constrain: makes what the text follows.
    """

    prompt: list[int]
    tokenizer: Decoder
    sampling: Sampling
    max_new_tokens: int
    emit: Callable[[Event], None]
    deadline: float
    stop: tuple[str, ...] = ()
    marks: Collection[int] = ()
    chances: int | None = None
    constrain: Callable[[], Constraint] | None = None
    cancelled: bool = False
    _seen: list[Chance] = field(default_factory=list)

    def given_up(self) -> ApiError | None:
        """Return why nobody waits for the text any more, if that is so."""
        if self.cancelled:
            return ApiError(499, "the client went away.", "cancelled")
        if monotonic() > self.deadline:
            return ApiError(408, "the request took longer than the server allows.", "timeout_error", code="timeout")
        return None

    def fail(self, error: ApiError) -> None:
        """Tell why there is no more text."""
        self.emit(error)

    def steps(self, place: Place, cache: PrefixCache) -> Generator[None, None, None]:
        """Read the prompt, then generate: a chunk or a token at each step."""
        stats = GenerationStats()
        session = place.session
        # A few more tokens cost the generation's first call next to nothing; a call of their own costs as much as many.
        rest = max(0, session.prefill_chunk // 4 - 1)
        reading = Reading(session, self.prompt[:-1], cache, self.marks, rest=rest, drafter=place.drafter)
        for _ in reading.steps():
            yield
        text = TextStream(self.tokenizer, self.stop)
        tokens = session.generate(
            self.prompt[session.length :], max_new_tokens=self.max_new_tokens, drafter=place.drafter, sampling=self.sampling,
            until=text.push, watch=self._watch if self.chances is not None else None,
            constraint=self.constrain() if self.constrain is not None else None,
            stats=stats,
        )  # fmt: skip
        last = -1
        with closing(tokens):  # type: ignore[type-var]  # a generator
            for last in tokens:
                self.emit(Piece(text.read(), [last], self._chances(), stats.origin))
                yield
        if ending := text.finish():
            self.emit(Piece(ending, [], []))
        ended = text.stopped or last in session.manifest.eos_ids
        self.emit(Finished("stop" if ended else "length", reading.known, stats))

    def _watch(self, logits: NDArray[np.float32], token: int) -> None:
        largest = logits.max()
        chances = logits - (largest + np.log(np.exp(logits - largest).sum()))
        most = min(self.chances or 0, len(chances))
        best = np.argsort(-chances, kind="stable")[:most]
        pairs = [(int(each), float(chances[each])) for each in best]
        self._seen.append(Chance(token, max(float(chances[token]), -9999.0), pairs))

    def _chances(self) -> list[Chance]:
        """Those of the token that is handed out now: a block's tokens come at once, and are handed out one by one."""
        return [self._seen.pop(0)] if self._seen else []


# Events from the worker's thread to the loop's: a few hops a second, however fast tokens come, and between two calls.
#
# ExecuTorch's calls keep Python's lock. A loop that wakes up in the middle of one waits for its end, asking for the
# lock every 5
# milliseconds on a core that computes; and what it is told just before one begins reaches the client after it. So
# the worker's
# thread says when to hop, and then lets the loop go first.


INTERVAL = 0.04
"""Seconds between two hops, each of which takes the computing thread half a millisecond: nobody reads faster."""
PATIENCE = 0.005
"""Seconds that the worker's thread waits at most until the loop has handed over what it was told."""


class Inbox:
    """The events of one job. The first is handed over at once, later ones together as they came within ``INTERVAL``.

    Tokens of a verified block are handed over with the block's last one, which is the model's own.
    """

    def __init__(self) -> None:
        """Made on the loop's thread."""
        self._loop = asyncio.get_running_loop()
        self._events: deque[Event] = deque()
        self._wake = asyncio.Event()
        self._listens = threading.Event()
        self._told = -inf

    def put(self, event: Event) -> None:
        """Take in an event, on any one thread. Nobody listens any more where the loop has ended."""
        self._events.append(event)
        now = monotonic()
        if isinstance(event, Piece) and (event.origin != "own" or now - self._told < INTERVAL):
            return
        self._told, listened = now, self._listens.is_set()
        self._listens.clear()
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._wake.set)
            if listened and isinstance(event, Piece):
                self._listens.wait(PATIENCE)

    async def get(self) -> list[Event]:
        """Return the events since the last call, at least one; to call again says that they were handed over."""
        self._listens.set()
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._events:
                return [self._events.popleft() for _ in range(len(self._events))]


# What the command line decides for all requests.


@dataclass(frozen=True, kw_only=True)
class Settings:
    """name: the model's; host: what the server is bound to; key: the API key, if it wants one; origins: those of web pages
    that may ask; sampling: where a request says nothing; queue: requests that may wait.
    """

    name: str
    host: str = "127.0.0.1"
    key: str | None = None
    origins: Sequence[str] = ()
    sampling: Sampling = field(default_factory=Sampling)
    queue: int = 32
    limits: Limits = field(default_factory=Limits)


# Counts of what the server did, in Prometheus' text form.


NAMES = {
    "requests_total": ("counter", "requests by path and status"),
    "prompt_tokens_total": ("counter", "tokens of prompts"),
    "cached_tokens_total": ("counter", "tokens of prompts that were not read again"),
    "generated_tokens_total": ("counter", "new tokens"),
    "draft_tokens_total": ("counter", "draft tokens that were verified"),
    "accepted_draft_tokens_total": ("counter", "draft tokens that became text"),
    "running": ("gauge", "generations that take turns"),
    "waiting": ("gauge", "requests that wait for one to end"),
    "cache_bytes": ("gauge", "bytes of the checkpoints that are kept"),
}


class Metrics:
    """Numbers by name and labels; any thread may change them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[tuple[str, str], float] = {}

    def add(self, name: str, value: float = 1, labels: str = "") -> None:
        """Count ``value`` more. labels: such as ``status="200"``."""
        with self._lock:
            self._values[name, labels] = self._values.get((name, labels), 0) + value

    def set(self, name: str, value: float) -> None:
        """Let a gauge show ``value``."""
        with self._lock:
            self._values[name, ""] = value

    def render(self) -> str:
        """Return everything in the text form."""
        with self._lock:
            values = dict(self._values)
        lines = []
        for name, (kind, what) in NAMES.items():
            lines += [f"# HELP hybridge_{name} {what}", f"# TYPE hybridge_{name} {kind}"]
            found = {labels: value for (known, labels), value in values.items() if known == name} or {"": 0}
            lines += [
                f"hybridge_{name}{{{labels}}} {value:g}" if labels else f"hybridge_{name} {value:g}"
                for labels, value in found.items()
            ]
        return "\n".join(lines) + "\n"
