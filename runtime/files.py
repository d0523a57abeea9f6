"""Files: read without trust, written so that they last, kept where nobody else may write."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import functools
import hashlib
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO


def open_regular(path: Path, largest: int | None = None) -> BufferedReader:
    """Open a regular file of at most ``largest`` bytes; a pipe, a device, a socket or a folder is never read.

    Raises OSError: EINVAL for anything but a regular file, EFBIG for too many bytes.
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
    """Return the bytes of a regular file. Raises OSError as ``open_regular``."""
    with open_regular(path, largest) as file:
        return file.read(largest)  # it may have grown since it was measured


def _without_waiting(path: str, flags: int) -> int:
    """Open with O_NONBLOCK: opening a FIFO without a writer would block."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)


# Durable writes: files and folders are synced before they appear under their names, and the names after that.

AT_FDCWD, RENAME_EXCHANGE = -100, 2
"""Linux, <fcntl.h> and <linux/fs.h>."""
CANNOT = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EXDEV)
"""Errors of a kernel or a file system that cannot exchange two names."""


def replace_file(path: Path, data: bytes) -> None:
    """Write a file at ``path``, whole or not at all, readable by its owner only; it is on the disk when this returns.

    Another writer waits meanwhile; the leftover of a killed writer is overwritten. Raises OSError.
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
    """Sync a file's content, or the names in a folder, to the disk. Raises OSError."""
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
    """Exchange two names in one step; return False if this system cannot. Raises OSError."""
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
    """Return the C library's function, or None."""
    return getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)


# Unfinished files and folders have one writer at a time; a lock distinguishes it from a killed one, because the system releases
# locks when a process ends. The name follows from the target's, so that the next writer finds and reuses a leftover.

NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EBADF)


def partial_path(path: Path) -> Path:
    """Return the hidden name beside ``path`` that is written before it is whole."""
    return path.with_name(f".{path.name}.partial")


@contextmanager
def claimed_file(path: Path) -> Iterator[BinaryIO]:
    """Yield an empty file at ``path`` that only this process writes; other writers wait. It is not removed afterwards.

    It is readable by its owner only. A file of another user, put there to read along or to keep us waiting, is removed. Raises
    OSError, such as PermissionError if it cannot be removed.
    """
    while True:
        with open(path, "ab", opener=_for_the_owner) as file:
            status = os.fstat(file.fileno())
            if status.st_nlink == 0:  # its last writer has just removed it
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
    """A folder that only this process writes until it is released; see ``claim_folder``."""

    _descriptor = -1

    def __init__(self, path: Path) -> None:
        """Lock a folder. Raises FileNotFoundError, BlockingIOError if another process has it, and other OSErrors."""
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
        """Unlock the folder, under whatever name it has by now."""
        if self._descriptor >= 0:
            os.close(self.__dict__.pop("_descriptor"))  # one line, behind which it is neither open nor closed a second time

    def __del__(self) -> None:
        """Unlock the folder if Ctrl-C kept its user from it."""
        self.release()


def claim_folder(path: Path) -> ClaimedFolder:
    """Make an empty folder at ``path`` for its owner only, or empty the leftover of a killed writer.

    Raises BlockingIOError if another process is writing there, and other OSErrors.
    """
    while True:
        if path.is_symlink():
            path.unlink()  # an artifact was replaced through it
        with suppress(FileExistsError):
            path.mkdir(mode=0o700)
        with suppress(FileNotFoundError):  # its last writer has just moved it away
            claim = ClaimedFolder(path)
            break
    try:
        _clear(path)
    except BaseException:
        claim.release()
        raise
    return claim


def remove_leftover(path: Path) -> None:
    """Remove the leftover of a killed writer at ``path``, unless another is writing; errors are ignored."""
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
    """Return whether ``path`` still leads to the open file; an earlier writer may have renamed it."""
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _for_the_owner(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)


# Cache directory for code that we execute: writable by its owner only, verified by hash.

NOT_OTHERS = stat.S_IWGRP | stat.S_IWOTH
LARGEST = 1 << 30
"""Most bytes of a file in it; compiled libraries have far fewer."""


def private_folder(path: Path, top: Path) -> None:
    """Make ``path`` and the folders above it up to ``top``, writable by their owner only.

    Existing folders of this user lose write permission for others. Raises OSError.
    """
    top.parent.mkdir(parents=True, exist_ok=True)
    for folder in _way(path, top):
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.stat()
        if status.st_uid == os.geteuid() and status.st_mode & NOT_OTHERS:
            folder.chmod(0o700)


def hash_path(file: Path) -> Path:
    """Return the path of ``file``'s hash."""
    return file.with_name(f"{file.name}.sha256")


def write_hash(file: Path) -> None:
    """Write the SHA-256 of ``file`` beside it, in the format of sha256sum. Raises OSError."""
    with open_regular(file, LARGEST) as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    hash_path(file).write_text(f"{digest}  {file.name}\n", encoding="ascii")
    hash_path(file).chmod(0o644)  # whatever the umask lets others do


def distrust(file: Path, top: Path) -> str | None:
    """Check owner, mode and hash of ``file``, and of its folders up to ``top``; return why it must not be run, or None.

    Files of this user and of root are trusted if nobody else may write them. Raises OSError if something cannot be read.
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
    """Return ``top`` and the folders below it down to ``path``."""
    return [top, *(top.joinpath(*path.relative_to(top).parts[: i + 1]) for i in range(len(path.relative_to(top).parts)))]


def _may_be_moved(top: Path) -> bool:
    mode = top.parent.stat().st_mode
    return bool(mode & stat.S_IWOTH) and not mode & stat.S_ISVTX


# Cleanup when a signal ends the process during a write. An exception from a signal handler comes up wherever Python happens to
# run: while PyTorch traces, often in code that C++ calls, where Python swallows it or the process ends in std::terminate. So a
# command that writes does not raise one: it calls the functions that are registered here, and exits.

_undoing: list[Callable[[], None]] = []  # of the process, as its signals are


@contextmanager
def undone_at_signals(undo: Callable[[], None]) -> Iterator[None]:
    """Register ``undo`` for a signal that ends the process during the body."""
    _undoing.append(undo)
    try:
        yield
    finally:
        _undoing.remove(undo)


def is_anything_unfinished() -> bool:
    """Return whether something is being written now."""
    return bool(_undoing)


def undo_unfinished() -> None:
    """Call the registered functions; what cannot be removed stays for the next writer."""
    for undo in _undoing:
        with suppress(OSError):
            undo()
