"""A folder in which checkpoints outlive their process: written by a thread of its own, read at the start."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from weakref import WeakKeyDictionary

from torch import Tensor

from hybridge.cache.errors import OutputError, StateFileError
from hybridge.runtime.files.durable import replace_file
from hybridge.runtime.files.private import private_folder
from hybridge.runtime.sessions.checkpoint import Checkpoint, RowSegment
from hybridge.runtime.sessions.checkpoint_file import (
    ROWS,
    STATE,
    checkpoint_of,
    name_of,
    read_file,
    rows_file,
    segment_of,
    state_file,
)
from hybridge.runtime.sessions.prefix_cache import PrefixCache
from hybridge.runtime.sessions.session import Session

log = logging.getLogger(__name__)
NAME = re.compile(r"[0-9a-f]{64}\.(state|rows)")
MOST_FILES = 100_000
MOST_WAITING = 256
"""Checkpoints that wait to be written; others are not."""


class CheckpointFolder:
    """Keeps the checkpoints of a ``PrefixCache`` in a folder, of at most ``budget`` bytes for each artifact.

    Several processes may share a folder: files appear whole, never change, and one that is gone is a checkpoint less. Texts of
    conversations are in it, so it is for its owner alone.
    """

    def __init__(self, top: Path, session: Session, budget: int) -> None:
        """top: holds a folder for each artifact. Raises OutputError where it cannot be made, UsageError without an artifact."""
        self.layout, self.budget = session.layout(), budget
        self.folder = top / hashlib.sha256(self.layout.artifact.encode()).hexdigest()[:32]
        try:
            private_folder(self.folder, self.folder)
        except OSError as error:
            raise OutputError(f"{top} cannot hold checkpoints: {error.strerror or error}. Give another --cache-dir.") from None
        self._segments: WeakKeyDictionary[RowSegment, str] = WeakKeyDictionary()
        self._states: WeakKeyDictionary[Checkpoint, str] = WeakKeyDictionary()
        self._waiting: deque[Checkpoint] = deque()
        self._changed = threading.Condition()
        self._ends = self._failed = self._busy = False
        self._thread = threading.Thread(target=self._work, name="hybridge-checkpoints", daemon=True)
        self._thread.start()

    def keep(self, cache: PrefixCache) -> None:
        """Add to ``cache`` what is there, and write what it keeps from now on."""
        self.load_into(cache)
        cache.used = self.put

    # Reading

    def load_into(self, cache: PrefixCache) -> int:
        """Add the newest to ``cache``, as far as its budget goes, and return how many; what cannot be read is left out."""
        found: list[Checkpoint] = []
        segments: dict[str, RowSegment] = {}
        room = min(self.budget, cache.budget)
        for name in self._names(STATE):
            try:
                checkpoint = self._read(name, segments)
            except StateFileError as error:
                log.warning("a checkpoint is ignored: %s", error)
                continue
            room -= checkpoint.nbytes
            if room < 0:
                break
            found.append(checkpoint)
            self._states[checkpoint] = name
        self._segments.update({segment: name for name, segment in segments.items()})
        for checkpoint in reversed(found):
            cache.add(checkpoint)
        return len(found)

    def _read(self, name: str, segments: dict[str, RowSegment]) -> Checkpoint:
        metadata, buffers = read_file(self.folder, name, self.layout)
        return checkpoint_of(buffers, self._segment(metadata.get("segment", ""), segments), self.layout)

    def _segment(self, name: str, segments: dict[str, RowSegment]) -> RowSegment:
        """Return the segment of a file, and put it and those before it into ``segments``."""
        missing: list[tuple[str, dict[str, str], dict[str, Tensor]]] = []
        while name and name not in segments:
            if NAME.fullmatch(name) is None or not name.endswith(ROWS) or len(missing) > self.layout.max_seq_len:
                raise StateFileError(f"{self.folder} has a checkpoint with rows of no name.")
            metadata, buffers = read_file(self.folder, name, self.layout)
            missing.append((name, metadata, buffers))
            name = metadata.get("parent", "")
        segment = segments.get(name)
        for each, metadata, buffers in reversed(missing):
            segment = segment_of(metadata, buffers, segment, self.layout)
            segments[each] = segment
        if segment is None:
            raise StateFileError(f"{self.folder} has a checkpoint without rows.")
        return segment

    def _names(self, kind: str) -> list[str]:
        """Return the files of a kind, those that were used last first."""
        return [name for name, _, _ in sorted(self._files(), key=lambda each: -each[1]) if name.endswith(kind)]

    def _files(self) -> Iterator[tuple[str, float, int]]:
        """Yield name, time of the last use, and bytes of each file."""
        with os.scandir(self.folder) as entries:
            for _, entry in zip(range(MOST_FILES), entries, strict=False):
                with suppress(OSError):
                    if NAME.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                        status = entry.stat(follow_symlinks=False)
                        yield entry.name, status.st_mtime, status.st_size

    # Writing

    def put(self, checkpoint: Checkpoint) -> None:
        """Let a checkpoint be written, or count as used where it was; does not wait for that."""
        with self._changed:
            if len(self._waiting) < MOST_WAITING and not self._failed:
                self._waiting.append(checkpoint)
                self._changed.notify_all()

    def flush(self) -> None:
        """Wait until everything is written."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting and not self._busy)

    def close(self) -> None:
        """Write what waits, and end."""
        with self._changed:
            self._ends = True
            self._changed.notify_all()
        self._thread.join()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._waiting or self._ends)
                if not self._waiting:
                    return
                checkpoint, self._busy = self._waiting.popleft(), True
            try:
                self._write(checkpoint)
            except OSError as error:
                log.warning("checkpoints are not written to %s any more: %s", self.folder, error.strerror or error)
                with self._changed:
                    self._failed = True
                    self._waiting.clear()

    def _write(self, checkpoint: Checkpoint) -> None:
        known = self._states.get(checkpoint)
        if known is not None and (self.folder / known).exists():
            self._use(checkpoint)
            return
        parent = ""
        for segment in checkpoint.segment.chain():
            name = self._segments.get(segment)
            if name is None or not (self.folder / name).exists():
                name = self._put(rows_file(self.layout.artifact, segment, parent), ROWS)
                self._segments[segment] = name
            parent = name
        self._states[checkpoint] = self._put(state_file(checkpoint, parent), STATE)
        self._use(checkpoint)  # rows are older than no state that needs them
        self._prune()

    def _use(self, checkpoint: Checkpoint) -> None:
        for name in (self._states[checkpoint], *(self._segments[each] for each in checkpoint.segment.chain())):
            with suppress(OSError):
                os.utime(self.folder / name)

    def _put(self, data: bytes, kind: str) -> str:
        name = name_of(data, kind)
        replace_file(self.folder / name, data)
        return name

    def _prune(self) -> None:
        """Remove what was used least recently, until the rest fits."""
        files = sorted(self._files(), key=lambda each: each[1])
        size = sum(bytes_ for _, _, bytes_ in files)
        for name, _, bytes_ in files:
            if size <= self.budget:
                return
            with suppress(OSError):
                (self.folder / name).unlink()
            size -= bytes_
