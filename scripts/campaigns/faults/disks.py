"""Let a writer run out of room, at every size of the disk that is too small."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from pathlib import Path

from campaigns.faults.writers import Broken, Writer, leftovers
from hybridge.cache.errors import HybridgeError

PAGE = 4096


def can_mount() -> bool:
    """Return whether this user may mount a file system."""
    return os.geteuid() == 0 and Path("/proc/filesystems").exists()


def fill_disks(writer: Writer, work: Path, sizes: int) -> tuple[Counter[str], list[str]]:
    """Return what was found how often, and what was wrong, on ``sizes`` disks: just the old fits, up to three times it."""
    used = _used(writer, work)
    outcomes: Counter[str] = Counter()
    wrong: list[str] = []
    for number in range(sizes):
        room = used + PAGE * (number * (2 * used // PAGE + 64) // sizes)
        try:
            outcomes[_on_a_disk_of(room, writer, work)] += 1
        except Broken as error:
            wrong.append(f"{writer.name}, a disk of {room} bytes: {error}")
    return outcomes, wrong


def _used(writer: Writer, work: Path) -> int:
    """Bytes of a disk that has the old and nothing else."""
    with _Disk(work, 1 << 30):
        writer.before(work)
        status = os.statvfs(work)
        return (status.f_blocks - status.f_bfree) * status.f_frsize


def _on_a_disk_of(room: int, writer: Writer, work: Path) -> str:
    with _Disk(work, room + PAGE):
        writer.before(work)
        expected = writer.found(work)
        try:
            writer.write(work)
        except HybridgeError as error:
            if writer.says_full and "full" not in str(error) and "No space" not in str(error):
                raise Broken(f"the error does not say that the disk is full: {error}") from None
            if writer.check(work, expected) == "new":
                raise Broken("it was written, and an error was raised") from None
            if left := leftovers(writer, work):
                raise Broken(f"it left {left}") from None
            return "refused"
        except OSError as error:
            raise Broken(f"a bare {type(error).__name__}: {error}") from None
        if writer.found(work) != "new":
            raise Broken("it was written to its end, and is not there")
        return "written"


class _Disk:
    """A file system in memory at ``path``, of so many bytes."""

    def __init__(self, path: Path, size: int) -> None:
        self._path, self._size = path, size

    def __enter__(self) -> None:
        self._path.mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={self._size}", "faults", self._path], check=True)

    def __exit__(self, *error: object) -> None:
        subprocess.run(["umount", self._path], check=True)
