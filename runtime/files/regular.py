"""Read a file that anybody may have put there: a regular one of a known size at most, and without waiting for it."""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path


def open_regular(path: Path, largest: int | None = None) -> BufferedReader:
    """Open a regular file of at most ``largest`` bytes; a pipe, a device, a socket or a folder is never read.

    Raises OSError, EINVAL for something that is no file and EFBIG for too many bytes.
    """
    file = open(path, "rb", opener=_without_waiting)  # noqa: SIM115  the caller's to close
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is no regular file")
    if largest is not None and status.st_size > largest:
        file.close()
        raise OSError(errno.EFBIG, f"it has {status.st_size} bytes, and {largest} are the most there can be")
    return file


def read_regular(path: Path, largest: int) -> bytes:
    """Return the bytes of such a file. Raises OSError likewise."""
    with open_regular(path, largest) as file:
        return file.read(largest)  # it may have grown since it was measured


def _without_waiting(path: str, flags: int) -> int:
    """A pipe that nobody writes to would else be waited for at its opening."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)
