"""Find the memory that this process may use: the machine's, or less in a container."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

VERSION_1, VERSION_2 = "memory.limit_in_bytes", "memory.max"


def memory_bytes(root: Path = Path("/")) -> int:
    """Return the bytes of the machine's memory, or the lowest limit of a control group. root: the folder with proc and sys."""
    return min([os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *_limits(root)])


def _limits(root: Path) -> Iterator[int]:
    for path in _limit_files(root):
        try:
            text = path.read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            continue  # the container does not see this group of the host, or it has no limit
        if text.isdigit():  # otherwise it is "max"
            yield int(text)


def _limit_files(root: Path) -> Iterator[Path]:
    """Yield the files that may hold limits of this process: of its group, of all groups around it, and of the mount.

    A container may see its own group as the mounted one, whatever path the host has for it.
    """
    mounts = root / "sys" / "fs" / "cgroup"
    for controllers, group in _groups(root):
        if not controllers:
            folders, name = [mounts, mounts / "unified"], VERSION_2
        elif "memory" in controllers.split(","):
            folders, name = [mounts / "memory"], VERSION_1
        else:
            continue
        parts = [part for part in Path(group).parts[1:] if part != ".."]
        yield from (folder.joinpath(*parts[:depth], name) for folder in folders for depth in range(len(parts) + 1))


def _groups(root: Path) -> Iterator[tuple[str, str]]:
    """Yield controllers and path of each group of this process; version 2 names no controllers."""
    try:
        lines = (root / "proc" / "self" / "cgroup").read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return  # not Linux, or without control groups
    for line in filter(None, lines):
        _, controllers, group = line.split(":", 2)
        yield controllers, group
