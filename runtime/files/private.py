"""What this process is going to run: kept where nobody but its user may write, with a hash beside it."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

from hybridge.runtime.files.regular import open_regular

NOT_OTHERS = stat.S_IWGRP | stat.S_IWOTH
LARGEST = 1 << 30
"""Bytes; of what is compiled here nothing is nearly as large."""


def private_folder(path: Path, top: Path) -> None:
    """Make ``path`` and the folders above it up to ``top``, for their owner alone.

    Those of this user's that others may write are closed to them. Raises OSError.
    """
    top.parent.mkdir(parents=True, exist_ok=True)
    for folder in _way(path, top):
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.stat()
        if status.st_uid == os.geteuid() and status.st_mode & NOT_OTHERS:
            folder.chmod(0o700)


def hash_path(file: Path) -> Path:
    """Return where the hash of ``file`` is kept."""
    return file.with_name(f"{file.name}.sha256")


def write_hash(file: Path) -> None:
    """Write the SHA-256 of ``file`` beside it, in the format of sha256sum. Raises OSError."""
    with open_regular(file, LARGEST) as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    hash_path(file).write_text(f"{digest}  {file.name}\n", encoding="ascii")
    hash_path(file).chmod(0o644)  # whatever the umask lets others do


def distrust(file: Path, top: Path) -> str | None:
    """Return why ``file`` must not be run, or None: its owner, its mode and its hash, and those of its folders up to ``top``.

    This user's and root's are trusted, where nobody else may write. Raises OSError where something cannot be read.
    """
    if _may_be_moved(top):
        return f"anybody may rename the folders in {top.parent}"
    for path in (*_way(file.parent, top), file, hash_path(file)):
        status = path.stat()
        if status.st_uid not in (0, os.geteuid()):
            return f"{path} belongs to another user, of id {status.st_uid}"
        if status.st_mode & NOT_OTHERS:
            return f"others may write {path}"
    with open_regular(file, LARGEST) as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    with open_regular(hash_path(file), 4096) as kept:
        same = kept.read().split()[:1] == [digest.encode()]
    return None if same else f"{file} was altered or damaged: its SHA-256 is not the one beside it"


def _way(path: Path, top: Path) -> list[Path]:
    """``top`` and the folders below it down to ``path``."""
    return [top, *(top.joinpath(*path.relative_to(top).parts[: i + 1]) for i in range(len(path.relative_to(top).parts)))]


def _may_be_moved(top: Path) -> bool:
    mode = top.parent.stat().st_mode
    return bool(mode & stat.S_IWOTH) and not mode & stat.S_ISVTX
