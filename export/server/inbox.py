"""Events from the worker's thread to the loop's: a few hops a second, however fast tokens come, and between two calls.

ExecuTorch's calls keep Python's lock. A loop that wakes up in the middle of one waits for its end, asking for the lock every 5
milliseconds on a core that computes; and what it is told just before one begins reaches the client after it. So the worker's
thread says when to hop, and then lets the loop go first.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from contextlib import suppress
from math import inf
from time import monotonic

from hybridge.export.server.job import Event, Piece

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
