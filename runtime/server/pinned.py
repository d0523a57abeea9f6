"""Name uvicorn 0.54's protocol over h11, as a class to build on: only its name as a setting is documented.

``runtime/server/connections.py`` reads its ``cycle`` (none before a head), ``connections``, ``client``, ``loop`` and
``transport``, and overrides asyncio's callbacks and ``on_response_complete``; tests/runtime/server/test_pins_of_server.py
has them.
"""

from __future__ import annotations

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["H11Protocol", "head_so_far"]


def head_so_far(protocol: H11Protocol) -> bytes | None:
    """Return the bytes so far of a request's head; None if h11 does not wait for one."""
    return bytes(protocol.conn.trailing_data[0]) if protocol.conn.their_state is h11.IDLE else None
