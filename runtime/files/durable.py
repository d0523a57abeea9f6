"""What was written stays: files and folders are synced before they appear under their names, and the names after it."""

from __future__ import annotations

import ctypes
import errno
import functools
import os
from pathlib import Path
from typing import Any

from hybridge.runtime.files.claim import claimed_file, partial_path, remove_leftover

AT_FDCWD, RENAME_EXCHANGE = -100, 2
"""Linux, <fcntl.h> and <linux/fs.h>."""
CANNOT = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EXDEV)
"""What a kernel or a file system without such an exchange answers."""


def replace_file(path: Path, data: bytes) -> None:
    """Put a file at ``path``, whole or not at all, for the owner alone to read; it is on the disk when this returns.

    Who writes there at the same time waits, and what a killed writer left is written over. Raises OSError.
    """
    partial = partial_path(path)
    try:
        with claimed_file(partial) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            partial.replace(path)
    except BaseException:
        remove_leftover(partial)
        raise
    sync(path.parent)


def sync(path: Path) -> None:
    """Wait until a file's content, or the names in a folder, are on the disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system that has no such thing
            raise
    finally:
        os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """Sync every file and folder of ``folder``, and itself last."""
    for place, _, files in os.walk(folder, topdown=False):
        for name in files:
            sync(Path(place) / name)
        sync(Path(place))


def exchange(one: Path, other: Path) -> bool:
    """Let two names change places in one step; False where this system cannot. Raises OSError."""
    rename = _renameat2()
    if rename is None:
        return False
    if rename(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in CANNOT:
        return False
    raise OSError(number, os.strerror(number), str(one), None, str(other))


@functools.cache
def _renameat2() -> Any:
    """The C library's function; None where it has none."""
    return getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
