"""Make what a writer may find at a path: devices, pipes, links and mount points of the tests' own."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

NO_FILES = {"device": "a device", "disk": "a device", "pipe": "a pipe", "socket": "a socket"}
"""Neither files nor folders, and the words for them."""
MADE = {
    "device": (stat.S_IFCHR, os.makedev(1, 3)),  # the numbers of /dev/null
    "disk": (stat.S_IFBLK, os.makedev(7, 77)),
    "pipe": (stat.S_IFIFO, 0),
    "socket": (stat.S_IFSOCK, 0),
}


def make(path: Path, kind: str) -> Path:
    """Make a ``folder`` or one of ``NO_FILES``; skip the test if this user may not."""
    if kind == "folder":
        path.mkdir()
        return path
    mode, device = MADE[kind]
    try:
        os.mknod(path, mode | 0o600, device)
    except PermissionError:
        pytest.skip(f"making a {kind} needs root")
    return path


@contextmanager
def mounted(path: Path, source: Path | None = None) -> Iterator[Path]:
    """Mount an empty file system at ``path``, or ``source`` a second time; skip the test if this user may not."""
    words = ["-t", "tmpfs", "none"] if source is None else ["--bind", str(source)]
    if subprocess.run(["mount", *words, str(path)], capture_output=True, check=False).returncode:
        pytest.skip("mounting needs root")
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)


def identity(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return what makes each entry of a folder the one that it is."""
    entries = {each.name: each.lstat() for each in folder.iterdir()}
    return {name: (found.st_ino, found.st_mode, found.st_rdev, found.st_size) for name, found in entries.items()}
