"""Compute on one thread: generations take turns, a token or a chunk of a prompt each, and send events to the event loop."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from math import inf
from time import monotonic

from hybridge.errors import HybridgeError
from hybridge.runtime.binding.checkpoint import PrefixCache
from hybridge.runtime.binding.drafters import Drafter
from hybridge.runtime.binding.generation import Constraint
from hybridge.runtime.binding.pictures import Picture
from hybridge.runtime.binding.prompt_prefill import PromptPrefill
from hybridge.runtime.binding.sampling import Sampling
from hybridge.runtime.binding.session import Session
from hybridge.runtime.binding.statistics import GenerationStats
from hybridge.runtime.server.requests import ApiError, of_hybridge
from hybridge.runtime.text.answers import TokenDecoder
from hybridge.runtime.text.generate import FinishReason, TextPiece, TokenLogprobs, generate_text, prompt_logprobs

log = logging.getLogger(__name__)

INTERVAL = 0.04
"""Seconds between two deliveries, each of which takes the computing thread half a millisecond; people read no faster."""
PATIENCE = 0.005
"""Longest time in seconds that the worker's thread waits for the loop to pass on a delivery."""


@dataclass(frozen=True)
class SessionSlot:
    """A session over the loaded artifact, and its drafter."""

    session: Session
    drafter: Drafter | None

    def cached_tokens(self, prompt: list[int]) -> int:
        """Return how many tokens of the prompt the session has read; 0 if its text is not a beginning of the prompt."""
        tokens = self.session.tokens
        return len(tokens) if prompt[: len(tokens)] == tokens else 0


@dataclass(frozen=True)
class Finished:
    """The end of a text.

    cached_tokens: tokens of the prompt that were not read again. Of the answer, by who splits it: reasoning_tokens, and
    stop_string, which ended it.
    """

    reason: FinishReason
    cached_tokens: int
    stats: GenerationStats
    reasoning_tokens: int = 0
    stop_string: str | None = None


Event = TextPiece | Finished | ApiError


@dataclass(eq=False)
class Job:
    """A generation that was requested: reads its prompt and emits its text, step by step.

    Args:
        prompt: tokens.
        emit: takes each event, on the worker's thread; the last is Finished or an ApiError.
        deadline: by ``time.monotonic``.
        marks: lengths of the prompt at which other conversations may branch off.
        max_new_tokens: None for no limit but the context; 0 to read the prompt alone.
        echo: the prompt's text, which the text begins with; with logprobs, those of the prompt's tokens come along.
        logprobs: number of most likely tokens to report with each token; None for none.
        constrain: makes a constraint for the text.
        pictures: in the prompt, open until the end.
        is_answered: the answer needs no further token.
    """

    prompt: list[int]
    tokenizer: TokenDecoder
    sampling: Sampling
    max_new_tokens: int | None
    emit: Callable[[Event], None]
    deadline: float
    stop: tuple[str, ...] = ()
    marks: Collection[int] = ()
    echo: str | None = None
    logprobs: int | None = None
    constrain: Callable[[], Constraint] | None = None
    pictures: Sequence[Picture] = ()
    cancelled: bool = False
    is_answered: bool = False

    def given_up(self) -> ApiError | None:
        """Return the reason why the text is no longer wanted; None while it is."""
        if self.cancelled:
            return ApiError(499, "the client went away.", "cancelled")
        if monotonic() > self.deadline:
            return ApiError(408, "the request took longer than the server allows.", "timeout_error", code="timeout")
        return None

    def steps(self, slot: SessionSlot, cache: PrefixCache) -> Generator[None, None, None]:
        """Read the prompt, then generate: a chunk or a token at each step."""
        stats, session = GenerationStats(), slot.session
        # A few more tokens in the generation's first call cost next to nothing; in a call of their own, as much as many tokens.
        rest = max(0, session.prefill_chunk // 4 - 1)
        scores = list[TokenLogprobs]()
        if self.echo is not None and self.logprobs is not None:
            for score in prompt_logprobs(session, self.prompt, self.logprobs):
                scores.append(score)
                yield
        if self.echo is not None:
            self.emit(TextPiece(self.echo, logprobs=scores))
        reading = PromptPrefill(session, self.prompt[:-1], cache, self.marks, rest=rest, drafter=slot.drafter)
        cached = 0 if scores else reading.cached_tokens
        for _ in reading.steps():
            yield
        if self.max_new_tokens == 0:
            self.emit(Finished("length", cached, stats))
            return
        pieces = generate_text(
            session, self.prompt[session.length :], self.tokenizer, max_new_tokens=self.max_new_tokens, drafter=slot.drafter,
            sampling=self.sampling, stop=self.stop, constraint=self.constrain() if self.constrain is not None else None,
            logprobs=self.logprobs, stats=stats, until=lambda _: self.is_answered,
        )  # fmt: skip
        with closing(pieces):  # type: ignore[type-var]  # a generator
            for piece in pieces:
                if piece.tokens or piece.text:
                    self.emit(piece)
                if piece.finish_reason is not None:
                    self.emit(Finished(piece.finish_reason, cached, stats))
                    return
                yield


@dataclass
class RunningJob:
    """A job, its slot, and its remaining steps. encodings: of its pictures' parts before it."""

    job: Job
    slot: SessionSlot
    steps: Generator[None, None, None]
    encodings: int


class Worker:
    """Runs as many jobs at a time as there are slots; the others wait in the order in which they came."""

    def __init__(self, slots: Sequence[SessionSlot], cache: PrefixCache, metrics: Metrics, queue: int) -> None:
        """Make a worker that is not started. queue: number of jobs that may wait."""
        self.cache, self.metrics, self.queue, self.slots = cache, metrics, queue, len(slots)
        self._free = list(slots)  # the least recently used first
        self._running: list[RunningJob] = []
        self._waiting: deque[Job] = deque()
        self._changed = threading.Condition()
        self._ends = False
        self._thread = threading.Thread(target=self._work, name="hybridge-worker", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Fail all jobs, and end the thread once its current call is done."""
        with self._changed:
            self._ends = True
            self._changed.notify()
        self._thread.join()

    def submit(self, job: Job) -> None:
        """Queue a job. Raises ApiError if the queue is full."""
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
            job.emit(ApiError(503, "the server is stopping.", "server_error"))

    def _admit(self) -> bool:
        """Give free slots to waiting jobs, once there is something to do. Return False at the end."""
        with self._changed:
            while not (self._ends or self._running or self._waiting):
                self._changed.wait()
            while self._free and self._waiting and not self._ends:
                job = self._waiting.popleft()
                if (error := job.given_up()) is not None:
                    job.emit(error)
                    continue
                slot = max(self._free, key=lambda slot: slot.cached_tokens(job.prompt))  # the first of equal ones
                self._free.remove(slot)
                encodings = sum(each.encodings for each in job.pictures)
                self._running.append(RunningJob(job, slot, job.steps(slot, self.cache), encodings))
                self._count()
            return not self._ends

    def _step(self, running: RunningJob) -> None:
        """Run a step of a job; an error in it fails this job alone."""
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
            log.error("a generation failed: %s", type(error).__name__)  # the exception's message may quote a client's text
            self._fail(running, ApiError(500, "the generation failed; the server's log says why.", "server_error"))

    def _fail(self, running: RunningJob, error: ApiError) -> None:
        try:
            running.steps.close()  # commits the tokens that were emitted
        except Exception:
            running.slot.session.reset()
        running.job.emit(error)
        self._end(running)

    def _end(self, running: RunningJob) -> None:
        """Keep the state that a job leaves as a checkpoint, and free its slot."""
        session = running.slot.session
        self.metrics.add("encoded_pictures_total", sum(each.encodings for each in running.job.pictures) - running.encodings)
        try:
            session.keep_checkpoint(self.cache)
        except HybridgeError:
            session.reset()
        with self._changed:
            self._running.remove(running)
            self._free.append(running.slot)
            self._count()

    def _count(self) -> None:
        self.metrics.set("running", len(self._running))
        self.metrics.set("waiting", len(self._waiting))
        self.metrics.set("cache_bytes", self.cache.nbytes)


class Inbox:
    """Delivers one job's events from the worker's thread to the loop's: the first at once, later ones once per ``INTERVAL``.

    Tokens of a verified block are delivered with the block's last one, which is the model's own. ExecuTorch's calls keep
    Python's lock: a loop that wakes up during a call asks for the lock every 5 milliseconds, on a core that computes, and
    passes on its events after the call. So the worker's thread wakes the loop, and lets it go first between two calls.
    """

    def __init__(self) -> None:
        """Make an inbox; call this on the loop's thread."""
        self._loop = asyncio.get_running_loop()
        self._events: deque[Event] = deque()
        self._wake = asyncio.Event()
        self._listens = threading.Event()
        self._told = -inf

    def put(self, event: Event) -> None:
        """Add an event, from any one thread; it is dropped if the loop has ended."""
        self._events.append(event)
        now = monotonic()
        if isinstance(event, TextPiece) and (event.origin != "own" or now - self._told < INTERVAL):
            return
        self._told, listened = now, self._listens.is_set()
        self._listens.clear()
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._wake.set)
            if listened and isinstance(event, TextPiece):
                self._listens.wait(PATIENCE)

    async def get(self) -> list[Event]:
        """Return the events since the last call, at least one. The next call says that these were passed on."""
        self._listens.set()
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._events:
                return [self._events.popleft() for _ in range(len(self._events))]


METRICS = {
    "requests_total": ("counter", "requests by path and status"),
    "prompt_tokens_total": ("counter", "tokens of prompts"),
    "cached_tokens_total": ("counter", "tokens of prompts that were not read again"),
    "generated_tokens_total": ("counter", "new tokens"),
    "draft_tokens_total": ("counter", "draft tokens that were verified"),
    "accepted_draft_tokens_total": ("counter", "draft tokens that became text"),
    "encoded_pictures_total": ("counter", "pictures, or tiles of large ones, that were encoded"),
    "running": ("gauge", "generations that take turns"),
    "waiting": ("gauge", "requests that wait for one to end"),
    "cache_bytes": ("gauge", "bytes of the checkpoints that are kept"),
}


class Metrics:
    """Counters and gauges by name and labels, in Prometheus' text form; any thread may change them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[tuple[str, str], float] = {}

    def add(self, name: str, value: float = 1, labels: str = "") -> None:
        """Add to a counter. labels: such as ``status="200"``."""
        with self._lock:
            self._values[name, labels] = self._values.get((name, labels), 0) + value

    def set(self, name: str, value: float) -> None:
        """Set a gauge."""
        with self._lock:
            self._values[name, ""] = value

    def render(self) -> str:
        """Return all metrics in the text form."""
        with self._lock:
            values = dict(self._values)
        lines = []
        for name, (kind, what) in METRICS.items():
            lines += [f"# HELP hybridge_{name} {what}", f"# TYPE hybridge_{name} {kind}"]
            found = {labels: value for (known, labels), value in values.items() if known == name} or {"": 0}
            lines += [
                f"hybridge_{name}{{{labels}}} {value:g}" if labels else f"hybridge_{name} {value:g}"
                for labels, value in found.items()
            ]
        return "\n".join(lines) + "\n"
