"""A session serves one thread at a time, and says so to the others."""

from __future__ import annotations

from threading import get_ident

from hybridge.cache.errors import UsageError


class OneThread:
    """A context manager that one thread at a time may be in; not to be nested.

    A lock would stay locked for ever where an interrupt strikes just behind its acquisition. Here the next call of the same
    thread goes in again and cleans up.
    """

    def __init__(self) -> None:
        self._inside: dict[str, int] = {}

    def __enter__(self) -> None:
        """Raises UsageError while another thread is inside."""
        if self._inside.setdefault("thread", get_ident()) != get_ident():
            raise UsageError(
                "a Session serves one thread at a time, and another thread is in the middle of a call; "
                "give each thread a session of its own, or hold a lock around the calls."
            )

    def __exit__(self, *_: object) -> None:
        self._inside.clear()
