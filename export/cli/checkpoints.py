"""``--cache-bytes`` and ``--cache-dir``: checkpoints in memory, and on disk."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hybridge.runtime.core.checkpoint import PrefixCache
from hybridge.runtime.core.checkpoint_folder import CheckpointFolder
from hybridge.runtime.core.session import Session


@contextmanager
def kept_checkpoints(session: Session, budget: int, folder: Path | None) -> Iterator[PrefixCache]:
    """Yield a cache with what ``folder`` has for the session's artifact; at the end everything is in the folder.

    Raises OutputError where there can be no such folder.
    """
    if folder is None or not budget:
        yield PrefixCache(session.model, budget)
        return
    disk = CheckpointFolder(folder, session, budget)
    try:
        cache = PrefixCache(session.model, budget)
        disk.keep(cache)
        yield cache
    finally:
        disk.close()
