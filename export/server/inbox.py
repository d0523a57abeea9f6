"""Events from the worker's thread to the loop's: a few hops a second, however fast tokens come."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress

from hybridge.export.server.job import Event, Piece

INTERVAL = 0.04
"""Seconds between two hops, each of which takes the computing thread about a millisecond: nobody reads faster."""


class Inbox:
    """The events of one job. The first is handed over at once, later ones together as they came within ``INTERVAL``."""

    def __init__(self) -> None:
        """Made on the loop's thread."""
        self._loop = asyncio.get_running_loop()
        self._events: deque[Event] = deque()
        self._wake = asyncio.Event()
        self._waits = self._began = False

    def put(self, event: Event) -> None:
        """Take in an event, on any one thread. Nobody listens any more where the loop has ended."""
        self._events.append(event)
        if self._waits or not isinstance(event, Piece):
            self._waits = False
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._wake.set)

    async def get(self) -> list[Event]:
        """Return the events since the last call, at least one."""
        if self._began:
            timer = self._loop.call_later(INTERVAL, self._wake.set)
            await self._woken()  # by the last event too
            timer.cancel()
        self._began = True
        while not self._events:
            self._waits = True  # whoever puts an event in from here on says so
            if not self._events:
                await self._woken()
        self._waits = False
        return [self._events.popleft() for _ in range(len(self._events))]

    async def _woken(self) -> None:
        await self._wake.wait()
        self._wake.clear()
