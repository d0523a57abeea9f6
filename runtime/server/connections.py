"""Accept connections and requests: each must send a whole request in time, from an allowed host, with the key."""

from __future__ import annotations

import asyncio
import hmac
import os
import socket
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import FrameType
from typing import cast

import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from hybridge.errors import OutputError
from hybridge.runtime.server.pinned import H11Protocol, head_so_far
from hybridge.runtime.server.requests import ApiError

MOST_CONNECTIONS = 256
MOST_OF_AN_ADDRESS = 128
RESERVE = 32
"""Connections beyond MOST_CONNECTIONS, which get answers from ``/health`` only."""
HEAD_SECONDS = 10.0
"""Longest time until the head of a request is complete."""
LOOK_SECONDS = 1.0
"""Interval of the checks for connections that take too long."""
LAST_SECONDS = 15.0
"""Longest time from a signal to the end of the process."""
LOOPBACK = ("127.0.0.1", "::1", "localhost")
BODY_SECONDS = 30.0
"""Longest time until the body of a request is complete."""
WAITING = 64
"""Connections that the system queues until they are accepted."""
GRACE_SECONDS = 3
"""Time for answers to finish after a signal."""


def listen(app: Starlette, host: str, port: int, ready: Callable[[str], None]) -> None:
    """Serve ``app`` until a signal, and call ``ready`` with the URL. Raises OutputError if the address is taken."""
    with bound(host, port) as opened:
        shown = f"[{host}]" if ":" in host else host
        ready(f"http://{shown}:{opened.getsockname()[1]}")
        over(app).run(sockets=[opened])


def bound(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises OutputError if the address is taken."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        opened = socket.socket(family, socket.SOCK_STREAM)
        try:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            opened.bind(address)
            opened.listen(WAITING)
        except OSError:
            opened.close()
            raise
    except OSError as error:
        said = f"{host}:{port} cannot be listened on: {error.strerror or error}."
        raise OutputError(f"{said} Give another --host or --port.") from None
    return opened


def over(app: Starlette) -> uvicorn.Server:
    """Return a server that runs ``app``. Requests are not logged: paths and addresses are private."""
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, server_header=False, date_header=False, ws="none", http=Connection,
        loop="asyncio", timeout_graceful_shutdown=GRACE_SECONDS,
    )  # fmt: skip
    server = Listener(config)
    config.app = server.limited(app)
    return server


class Connection(H11Protocol):
    """uvicorn's connection, dropped if it sends no request in time, or to make room for others."""

    since = 0.0
    _look: asyncio.TimerHandle | None = None

    @property
    def is_waiting(self) -> bool:
        """Return whether a request, or the rest of one, is still to come."""
        return self._has_no_head or self.cycle.more_body

    @property
    def _has_no_head(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept the connection, and drop others if there are too many."""
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
        """Stop the checks."""
        super().connection_lost(exc)
        if self._look is not None:
            self._look.cancel()

    def data_received(self, data: bytes) -> None:
        """Refuse a first line that is not HTTP/1 at once: h11 waits for the end of a head, which HTTP/0.9 does not have."""
        super().data_received(data)
        if not self.transport.is_closing() and (begun := head_so_far(self)) is not None:
            line, ended, _ = begun.lstrip(b"\r\n").partition(b"\n")
            if ended and b" HTTP/1." not in line:
                self.send_400_response("Invalid HTTP request received.")

    def on_response_complete(self) -> None:
        """Start the time for the next request."""
        self.since = self.loop.time()
        super().on_response_complete()

    def drop(self) -> None:
        """Close the connection at once."""
        self.connections.discard(self)
        self.transport.abort()

    def _look_later(self) -> None:
        self._look = self.loop.call_later(LOOK_SECONDS, self._check)

    def _check(self) -> None:
        """Drop a connection that takes too long. A body that is being read has a time limit of its own, with an answer."""
        most = HEAD_SECONDS if self._has_no_head else HEAD_SECONDS + BODY_SECONDS
        if self.is_waiting and self.loop.time() - self.since > most:
            self.drop()
        else:
            self._look_later()


def _make_room(among: Iterable[Connection], new: Connection, most: int) -> None:
    """Drop the connections that wait longest, as far as there are more than ``most``."""
    waiting = sorted((each for each in among if each.is_waiting and each is not new), key=lambda each: each.since)
    for each in waiting[: max(0, len(list(among)) - most)]:
        each.drop()


class Listener(uvicorn.Server):
    """uvicorn's server, which a signal ends for certain, if need be in the middle of an answer."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop listening, and end the process after LAST_SECONDS at the latest."""
        super().handle_exit(sig, frame)
        last = threading.Timer(LAST_SECONDS, os._exit, (128 + sig,))
        last.daemon = True
        last.start()

    def limited(self, app: ASGIApp) -> ASGIApp:
        """Return ``app`` with a limit: during too many requests only ``/health`` is answered."""

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            busy = max(len(self.server_state.tasks), len(self.server_state.connections)) > MOST_CONNECTIONS
            if scope["type"] == "http" and busy and scope["path"] != "/health":
                error = ApiError(503, "the server has too many connections; try again later.", "server_error")
                await JSONResponse(error.to_dict(), 503, headers={"retry-after": "1"})(scope, receive, send)
            else:
                await app(scope, receive, send)

        return answer


# Requests that are refused: of other hosts, without the key, too large, too slow


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of requests. body: bytes. seconds: for all of a request. new_tokens: if a request does not say how many."""

    body: int = 8 << 20
    seconds: float = 600.0
    new_tokens: int | None = None


def check_host(request: Request, bound: str) -> None:
    """Raise ApiError on a loopback server if the host is not this machine: a web page may resolve its own name to us."""
    try:
        name = request.url.hostname or ""
    except ValueError:
        name = ""
    if bound in LOOPBACK and name not in LOOPBACK:
        raise ApiError(
            403, "this server answers to localhost alone; start it with --host to serve other names.", "permission_error"
        )


def check_key(request: Request, key: str | None) -> None:
    """Raise ApiError if there is a key and the request lacks it. Takes the same time for every wrong key."""
    if key is None:
        return
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    if "x-api-key" in request.headers:  # as Anthropic's clients send it
        scheme, given = "bearer", request.headers["x-api-key"]
    right = hmac.compare_digest(given.strip().encode("utf-8", "surrogateescape"), key.encode())
    if not right or scheme.lower() != "bearer":
        raise ApiError(401, "the API key is missing or wrong: send it as 'Authorization: Bearer KEY'.", "authentication_error",
                       code="invalid_api_key")  # fmt: skip


async def read_body(request: Request, most: int) -> bytes:
    """Return the body of a JSON request. Raises ApiError for other content types, and for a body that is too large or too slow.

    Browsers let any web page send other content types to this machine without asking.
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
