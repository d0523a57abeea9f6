"""One thread that computes: several generations take turns, a token or a chunk of a prompt each."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass

from hybridge.cache.errors import HybridgeError
from hybridge.export.server.errors import ApiError, of_hybridge
from hybridge.export.server.job import Job, Place
from hybridge.export.server.metrics import Metrics
from hybridge.runtime.core.checkpoint import PrefixCache, keep

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
