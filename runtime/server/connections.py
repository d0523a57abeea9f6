"""Connections that may not hold the server up: each sends a whole request in time, or makes room for others."""

from __future__ import annotations

import asyncio
import hmac
import os
import threading
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, cast

import uvicorn
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from hybridge.runtime.server.pinned import H11Protocol, head_so_far
from hybridge.runtime.server.requests import ApiError

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


# Requests that are not let in: of other hosts and origins, without the key, too large, too slow.


LOOPBACK = ("127.0.0.1", "::1", "localhost")
BODY_SECONDS = 30.0
"""Within which a body has to be there."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """body: most bytes of one; seconds: that a request may take in all; new_tokens: where a request does not say how many."""

    body: int = 8 << 20
    seconds: float = 600.0
    new_tokens: int = 512


def check_host(request: Request, bound: str) -> None:
    """Raises ApiError on a loopback server for a name that is not this machine's: a web page may have given itself one."""
    try:
        name = request.url.hostname or ""
    except ValueError:
        name = ""
    if bound in LOOPBACK and name not in LOOPBACK:
        raise ApiError(
            403, "this server answers to localhost alone; start it with --host to serve other names.", "permission_error"
        )


def check_key(request: Request, key: str | None) -> None:
    """Raises ApiError where there is a key and the request does not bear it. Takes the same time for every wrong one."""
    if key is None:
        return
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    right = hmac.compare_digest(given.strip().encode("utf-8", "surrogateescape"), key.encode())
    if not right or scheme.lower() != "bearer":
        raise ApiError(401, "the API key is missing or wrong: send it as 'Authorization: Bearer KEY'.", "authentication_error",
                       code="invalid_api_key")  # fmt: skip


async def read_body(request: Request, most: int) -> bytes:
    """Return the body of a JSON request. Raises ApiError for other kinds, one that is too large, and one that does not come.

    The kind matters: a web page of anybody may send other kinds to this machine without asking.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise ApiError(415, "the body must be JSON, with 'Content-Type: application/json'.")
    too_large = ApiError(413, f"the body is larger than {most} bytes.", code="request_too_large")
    length = request.headers.get("content-length", "0")
    if length.isdigit() and int(length) > most:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.stream():
                body += chunk
                if len(body) > most:
                    raise too_large
    except TimeoutError:
        raise ApiError(408, f"the body was not there within {BODY_SECONDS:.0f} seconds.", "timeout_error") from None
    except ClientDisconnect:
        raise ApiError(499, "the client went away.", "cancelled") from None
    return bytes(body)
