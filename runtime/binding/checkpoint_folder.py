"""A folder in which checkpoints outlive their process: written by a thread of its own, read at the start.

A file has one part of a checkpoint: a segment of its text, which checkpoints share, or the rest. It is named after the SHA-256
of what it holds and never changes. Anybody can make a file with the right name: the core holds what it says against the
session's own buffers before it becomes a checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import SimpleQueue

from hybridge.errors import HybridgeError, OutputError, StateFileError, UsageError
from hybridge.runtime.binding.checkpoint import Checkpoint, PrefixCache
from hybridge.runtime.binding.session import Session
from hybridge.runtime.files import private_folder, read_regular, replace_file

log = logging.getLogger(__name__)
FORMAT = "hybridge-checkpoint-3"
STATE, ROWS = ".state", ".rows"
NAME = re.compile(r"[0-9a-f]{64}\.(state|rows)")
HEADER, HIDDEN = 1 << 12, 1 << 24
"""Most bytes of a file's first line, and of the hidden states of a few tokens."""
MOST_FILES = 100_000
MOST_WAITING = 256
"""Checkpoints that wait to be written; others are not."""


class CheckpointFolder:
    """Keeps the checkpoints of a ``PrefixCache`` in a folder, of at most ``budget`` bytes for each artifact.

    Several processes may share a folder: files appear whole, never change, and one that is gone is a checkpoint less. Texts of
    conversations are in it, so it is for its owner alone.
    """

    def __init__(self, top: Path, session: Session, budget: int) -> None:
        """Make the artifact's folder in ``top``. Raises OutputError if it cannot be made, UsageError without an artifact."""
        if session.manifest.identity is None:
            raise UsageError("only checkpoints of an exported artifact can be kept in a folder.")
        self.session, self.artifact, self.budget = session, session.manifest.identity, budget
        self._largest = session.state_bytes + 16 * session.max_seq_len + HEADER + HIDDEN
        self.folder = top / hashlib.sha256(self.artifact.encode()).hexdigest()[:32]
        try:
            private_folder(self.folder, self.folder)
        except OSError as error:
            raise OutputError(f"{top} cannot hold checkpoints: {error.strerror or error}. Give another --cache-dir.") from None
        self._names: dict[int, str] = {}
        """Parts in the folder, by the core's ids."""
        self._work: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._failed = False
        self._thread = threading.Thread(target=self._run, name="hybridge-checkpoints", daemon=True)
        self._thread.start()

    def keep(self, cache: PrefixCache) -> None:
        """Add to ``cache`` what is there, and write what it keeps from now on."""
        self.load_into(cache)
        cache.watch(self.put)

    # Reading

    def load_into(self, cache: PrefixCache) -> int:
        """Add the newest to ``cache``, as far as its budget goes, and return how many; what cannot be read is left out."""
        found: list[Checkpoint] = []
        chains: list[tuple[list[str], Checkpoint]] = []
        room = min(self.budget, cache.budget)
        for name in self._used(STATE):
            try:
                checkpoint = self._read(name, chains)
            except HybridgeError as error:
                log.warning("a checkpoint is ignored: %s", error)
                continue
            room -= checkpoint.nbytes
            if room < 0:
                break
            found.append(checkpoint)
        for checkpoint in reversed(found):
            cache.add(checkpoint)
        return len(found)

    def _read(self, name: str, chains: list[tuple[list[str], Checkpoint]]) -> Checkpoint:
        """Return the checkpoint of a file; its rows are shared with those of ``chains``, to which it is added."""
        before, data = self._read_file(name)
        names, parts = [name], [data]
        like, shared = None, 0
        while before:
            if NAME.fullmatch(before) is None or not before.endswith(ROWS) or len(names) > self.session.max_seq_len:
                raise StateFileError(f"{self.folder} has a checkpoint with rows of no name.")
            known = next(((chain, other) for chain, other in chains if before in chain), None)
            if known is not None:
                like, shared = known[1], known[0].index(before) + 1
                names += reversed(known[0][:shared])
                break
            names.append(before)
            before, data = self._read_file(before)
            parts.append(data)
        checkpoint = self.session.read_checkpoint(parts[::-1], like, shared)
        chain = names[::-1]
        self._names.update(zip(checkpoint.parts(), chain, strict=True))
        chains.append((chain[:-1], checkpoint))
        return checkpoint

    def _read_file(self, name: str) -> tuple[str, bytes]:
        """Return the name of the file of what comes before it, and the part. Raises StateFileError."""
        path = self.folder / name
        try:
            data = read_regular(path, self._largest)
        except OSError as error:
            raise StateFileError(f"{path} cannot be read: {error.strerror or error}.") from None
        if hashlib.sha256(data).hexdigest() != name.partition(".")[0]:
            raise StateFileError(f"{path} was damaged: it is not what it is named after.")
        line, _, part = data.partition(b"\n")
        try:
            match json.loads(line[:HEADER]):
                case {"format": str(found), "artifact": str(artifact), "before": str(before), **rest} if not rest:
                    if (found, artifact) == (FORMAT, self.artifact):
                        return before, part
        except (ValueError, RecursionError):
            pass
        raise StateFileError(f"{path} is of another version or another artifact.")

    def _used(self, kind: str) -> list[str]:
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
        """Queue a checkpoint for writing, or mark it as used if it was written.

        Takes no lock: the core calls this in a model's turn, for which the writing thread may wait.
        """
        if self._work.qsize() < MOST_WAITING and not self._failed:
            self._work.put(partial(self._write, checkpoint))

    def flush(self) -> None:
        """Wait until everything is written."""
        written = threading.Event()
        self._work.put(written.set)
        written.wait()

    def close(self) -> None:
        """Write what waits, and end."""
        self._work.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                work()
            except OSError as error:
                log.warning("checkpoints are not written to %s any more: %s", self.folder, error.strerror or error)
                self._failed = True
            del work  # and its checkpoint, before the next one comes

    def _write(self, checkpoint: Checkpoint) -> None:
        if self._failed:
            return
        before, written = "", False
        ids = checkpoint.parts()
        for place, number in enumerate(ids):
            name = self._names.get(number)
            if name is None or not (self.folder / name).exists():
                name = self._put(checkpoint.part(place), before, STATE if number == ids[-1] else ROWS)
                self._names[number], written = name, True
            before = name
        for number in reversed(ids):  # rows are older than no state that needs them
            with suppress(OSError):
                os.utime(self.folder / self._names[number])
        if written:
            self._prune()

    def _put(self, part: bytes, before: str, kind: str) -> str:
        header = json.dumps({"format": FORMAT, "artifact": self.artifact, "before": before})
        data = header.encode() + b"\n" + part
        name = hashlib.sha256(data).hexdigest() + kind
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
