"""Listen on an address, until the process is told to end."""

from __future__ import annotations

import socket
from collections.abc import Callable

import uvicorn
from starlette.applications import Starlette

from hybridge.cache.errors import OutputError
from hybridge.export.server.connections import Connection, Listener

WAITING = 64
"""Connections that the system holds until they are taken."""
GRACE_SECONDS = 3
"""That answers may go on for once the process is told to end."""


def listen(app: Starlette, host: str, port: int, ready: Callable[[str], None]) -> None:
    """Serve ``app``; ``ready`` is told the URL once clients can connect. Raises OutputError for an address that is taken."""
    with bound(host, port) as opened:
        shown = f"[{host}]" if ":" in host else host
        ready(f"http://{shown}:{opened.getsockname()[1]}")
        over(app).run(sockets=[opened])


def bound(host: str, port: int) -> socket.socket:
    """Return a socket that takes connections. Raises OutputError for an address that is taken."""
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
    """Return what runs ``app``. Nothing is logged of requests: paths and addresses are a user's own."""
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, server_header=False, date_header=False, ws="none", http=Connection,
        loop="asyncio", timeout_graceful_shutdown=GRACE_SECONDS,
    )  # fmt: skip
    server = Listener(config)
    config.app = server.limited(app)
    return server
