"""Connections that may not hold the server up: each sends a whole request in time, or makes room for others."""

from __future__ import annotations

import asyncio
import os
import threading
from types import FrameType
from typing import TYPE_CHECKING, cast

import uvicorn
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from hybridge.export.pinned.server import H11Protocol, head_so_far
from hybridge.export.server.errors import ApiError
from hybridge.export.server.guard import BODY_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterable

MOST_CONNECTIONS = 256
MOST_OF_AN_ADDRESS = 128
RESERVE = 32
"""Connections above the most, to which only ``/health`` is answered."""
HEAD_SECONDS = 10.0
"""Within which the head of a request has to be there."""
LOOK_SECONDS = 1.0
"""Between two looks at how long a connection takes."""
LAST_SECONDS = 15.0
"""After a signal, until the process ends whatever it does."""


class Connection(H11Protocol):
    """uvicorn's, which waits for a request without an end, and counts connections that send none like those that do."""

    since = 0.0
    _look: asyncio.TimerHandle | None = None

    @property
    def is_waiting(self) -> bool:
        """Return whether a request, or the rest of one, has yet to come."""
        return self._has_no_head or self.cycle.more_body

    @property
    def _has_no_head(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Make room for the connection."""
        super().connection_made(transport)
        self.since = self.loop.time()
        self._look_later()
        every = cast("set[Connection]", self.connections)
        address = self.client[0] if self.client else None
        _make_room([each for each in every if each.client and each.client[0] == address], self, MOST_OF_AN_ADDRESS)
        _make_room(every, self, MOST_CONNECTIONS)
        if len(every) > MOST_CONNECTIONS + RESERVE:
            self.drop()

    def connection_lost(self, exc: Exception | None) -> None:
        """Look no more."""
        super().connection_lost(exc)
        if self._look is not None:
            self._look.cancel()

    def data_received(self, data: bytes) -> None:
        """Refuse what is no line of HTTP/1 at once: h11 waits for the end of a head, which HTTP/0.9 does not have."""
        super().data_received(data)
        if not self.transport.is_closing() and (begun := head_so_far(self)) is not None:
            line, ended, _ = begun.lstrip(b"\r\n").partition(b"\n")
            if ended and b" HTTP/1." not in line:
                self.send_400_response("Invalid HTTP request received.")

    def on_response_complete(self) -> None:
        """Wait for the next request from now on."""
        self.since = self.loop.time()
        super().on_response_complete()

    def drop(self) -> None:
        """Close the connection at once."""
        self.connections.discard(self)
        self.transport.abort()

    def _look_later(self) -> None:
        self._look = self.loop.call_later(LOOK_SECONDS, self._check)

    def _check(self) -> None:
        """Drop a connection that takes too long: a body that is read has its own time, and an answer that says so."""
        most = HEAD_SECONDS if self._has_no_head else HEAD_SECONDS + BODY_SECONDS
        if self.is_waiting and self.loop.time() - self.since > most:
            self.drop()
        else:
            self._look_later()


def _make_room(among: Iterable[Connection], new: Connection, most: int) -> None:
    """Drop those that have waited longest where there are more than ``most``, if any waits."""
    waiting = sorted((each for each in among if each.is_waiting and each is not new), key=lambda each: each.since)
    for each in waiting[: max(0, len(list(among)) - most)]:
        each.drop()


class Listener(uvicorn.Server):
    """uvicorn's server; a signal ends the process, if it must be in the middle of what it does."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop to listen, and see to it that the process ends."""
        super().handle_exit(sig, frame)
        last = threading.Timer(LAST_SECONDS, os._exit, (128 + sig,))
        last.daemon = True
        last.start()

    def limited(self, app: ASGIApp) -> ASGIApp:
        """Return ``app``, which answers ``/health`` alone where there are too many requests at a time."""

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            busy = max(len(self.server_state.tasks), len(self.server_state.connections)) > MOST_CONNECTIONS
            if scope["type"] == "http" and busy and scope["path"] != "/health":
                error = ApiError(503, "the server has too many connections; try again later.", "server_error")
                await JSONResponse(error.to_dict(), 503, headers={"retry-after": "1"})(scope, receive, send)
            else:
                await app(scope, receive, send)

        return answer
