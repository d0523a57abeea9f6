"""Unfinished files and folders: one writer at a time, told from what a killed one has left behind by a lock.

The name follows from that of what is being written, so that the next writer finds what was left and uses it up. The system
gives a lock back when its process ends, however it ends. Where a file system has no locks, writers are not told apart.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from hybridge.runtime.files.regular import open_regular

NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EBADF)


def partial_path(path: Path) -> Path:
    """Return where ``path`` is written before it is whole: hidden, beside it."""
    return path.with_name(f".{path.name}.partial")


@contextmanager
def claimed_file(path: Path) -> Iterator[BinaryIO]:
    """Yield an empty file at ``path`` that nobody else writes meanwhile; others wait for it. It is not removed.

    For the owner alone to read: what another user has put there, to read along or to keep us waiting, is removed. Raises
    OSError, PermissionError too where it cannot be.
    """
    while True:
        with open(path, "ab", opener=_for_the_owner) as file:
            status = os.fstat(file.fileno())
            if status.st_nlink == 0:  # who had it has just removed it
                continue
            if status.st_uid != os.geteuid() or status.st_nlink > 1:
                path.unlink(missing_ok=True)
                continue
            os.fchmod(file.fileno(), 0o600)
            _lock(file.fileno(), wait=True)
            if _is_at(path, file.fileno()):
                file.truncate(0)
                yield file
                return


class ClaimedFolder:
    """A folder that nobody else writes until it is released, or forgotten by an interrupt; see ``claim_folder``."""

    _descriptor = -1

    def __init__(self, path: Path) -> None:
        """Raises FileNotFoundError, BlockingIOError where another process has it, and other OSErrors."""
        self._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            if os.fstat(self._descriptor).st_uid != os.geteuid():
                raise PermissionError(errno.EPERM, "it belongs to another user", str(path))
            _lock(self._descriptor, wait=False)
            if not _is_at(path, self._descriptor):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Let others have it, under whatever name it has by now."""
        if self._descriptor >= 0:
            os.close(self.__dict__.pop("_descriptor"))  # one line, behind which it is neither open nor closed a second time

    def __del__(self) -> None:
        """Release it where Ctrl-C came between the claim and whoever would have."""
        self.release()


def claim_folder(path: Path) -> ClaimedFolder:
    """Make an empty folder at ``path``, for the owner alone, out of what a killed writer may have left there.

    Raises BlockingIOError where another process is writing there, and other OSErrors.
    """
    while True:
        if path.is_symlink():
            path.unlink()  # what an artifact was replaced through
        with suppress(FileExistsError):
            path.mkdir(mode=0o700)
        with suppress(FileNotFoundError):  # who had it has just moved it away
            claim = ClaimedFolder(path)
            break
    try:
        _clear(path)
    except BaseException:
        claim.release()
        raise
    return claim


def remove_leftover(path: Path) -> None:
    """Remove what a killed writer left at ``path``, unless somebody is at it; without a word where it cannot be."""
    with suppress(OSError):
        if path.is_symlink():
            path.unlink()
        elif path.is_dir():
            claim = ClaimedFolder(path)
            shutil.rmtree(path, ignore_errors=True)
            claim.release()
        else:
            with open_regular(path) as file:
                _lock(file.fileno(), wait=False)
                if _is_at(path, file.fileno()):
                    path.unlink()


def _clear(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _lock(descriptor: int, *, wait: bool) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise


def _is_at(path: Path, descriptor: int) -> bool:
    """Return whether ``path`` still leads to what is open; who had it before may have renamed it."""
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _for_the_owner(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
