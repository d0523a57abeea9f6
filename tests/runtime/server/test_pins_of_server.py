"""What ``runtime/server/pinned.py`` assumes of uvicorn's protocol is so."""

from __future__ import annotations

import asyncio

import uvicorn
from uvicorn.server import ServerState

from hybridge.runtime.server.pinned import H11Protocol, head_so_far


def test_a_protocol_has_what_connections_look_at() -> None:
    async def look() -> None:
        config = uvicorn.Config(app=lambda: None)  # type: ignore[arg-type,return-value]
        config.load()
        protocol = H11Protocol(config, ServerState(), {})
        assert (protocol.cycle, protocol.client) == (None, None)
        assert protocol.connections == set()
        assert protocol.loop is asyncio.get_running_loop()
        assert head_so_far(protocol) == b""
        protocol.conn.receive_data(b"GET /old")
        assert head_so_far(protocol) == b"GET /old"
        protocol.conn.receive_data(b" HTTP/1.1\r\nHost: a\r\n\r\n")
        protocol.conn.next_event()
        assert head_so_far(protocol) is None

    asyncio.run(look())
    assert callable(H11Protocol.on_response_complete)
    assert callable(H11Protocol.send_400_response)
    assert callable(uvicorn.Server.handle_exit)
