"""Files: read without trust, written so that they last, in folders that only their user may write."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import functools
import hashlib
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import Any

from hybridge.errors import OutputError


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


# Durable writes: files and folders are synced before they appear under their names, and the names after that. What is
# unfinished has a hidden name beside the target, and one writer at a time: a lock, which the system releases when a process
# ends. The names follow from the target's, so that the next writer removes what a killed one left.
#
# A writer follows the links at a path to their end, and replaces a regular file or a folder and nothing else. The core has the
# same rules in native/engine/replaced_file.h: this must work where it is not compiled yet.

AT_FDCWD, RENAME_NOREPLACE, RENAME_EXCHANGE = -100, 1, 2
"""Linux, <fcntl.h> and <linux/fs.h>."""
MOST_LINKS = 40
"""Linux follows as many."""
KINDS = {
    stat.S_IFREG: "a file", stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device", stat.S_IFBLK: "a device", stat.S_IFLNK: "a link",
}  # fmt: skip
MOUNTS = Path("/proc/self/mountinfo")
CANNOT = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EXDEV)
"""Errors of a kernel or a file system that cannot exchange two names."""
NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EBADF)


class WrongKindError(OSError):
    """A path has a device, pipe, socket or folder, which a writer does not replace."""


def file_target(path: Path) -> Path:
    """Return the path at the end of the links at ``path``, where a writer puts a file; there may be nothing yet.

    Raises WrongKindError if something else than a regular file is there, or something is mounted over it; and other OSErrors.
    """
    target = _target(path, stat.S_IFREG)
    if _is_mounted(target):
        raise WrongKindError(errno.EBUSY, "it is a mount point; choose another path", str(path))
    return target


def folder_target(path: Path) -> Path:
    """Return the same for a folder. Raises like ``file_target``."""
    target = _target(path, stat.S_IFDIR)
    if _is_mounted(target):
        raise WrongKindError(errno.EBUSY, "it is a mount point; choose a folder inside it", str(path))
    return target


def _target(path: Path, wanted: int) -> Path:
    if "\0" in str(path):
        raise WrongKindError(errno.EINVAL, "its name has a NUL character; choose another path", repr(str(path)))
    with suppress(FileNotFoundError):
        _check_kind(path.stat().st_mode, wanted, path)
    for _ in range(MOST_LINKS):
        if not path.is_symlink():
            return path
        path = path.parent / path.readlink()
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))


def _check_kind(mode: int, wanted: int, path: Path) -> None:
    found = stat.S_IFMT(mode)
    if found != wanted:
        words = f"it is {KINDS.get(found, 'something else')}, not {KINDS[wanted]}; choose another path"
        raise WrongKindError(errno.EINVAL, words, str(path))


def _is_mounted(path: Path) -> bool:
    """Return whether ``path`` is a mount point; files, and folders that are mounted twice, are found in Linux's list only."""
    if not path.exists():  # nothing is mounted there, even if another writer puts a file there now
        return False
    if os.path.ismount(path):
        return True
    try:
        lines = MOUNTS.read_bytes().splitlines()
    except OSError:
        return False
    mounted = {re.sub(rb"\\(\d{3})", lambda digits: bytes([int(digits[1], 8)]), line.split()[4]) for line in lines}
    return os.fsencode(path.resolve()) in mounted


def replace_file(path: Path, data: bytes) -> None:
    """Write a file at ``file_target(path)``, whole or not at all, readable by its owner only; it is on the disk then.

    Another writer waits meanwhile. Raises OSError.
    """
    target = file_target(path)
    partial = partial_path(target)
    with locked(target):
        try:
            partial.unlink(missing_ok=True)
            with open(partial, "xb", opener=_for_the_owner) as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            take_place(partial, target)
        finally:
            partial.unlink(missing_ok=True)
    sync(target.parent)


def write_output(path: Path, data: bytes) -> None:
    """Write a file that a user has named, as ``replace_file`` does. Raises OutputError."""
    try:
        replace_file(path, data)
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror or error}.") from None


def take_place(partial: Path, target: Path) -> None:
    """Move a file to ``target``, over nothing or a regular file.

    Files that appeared since the check are checked again, where nobody else can change them. Raises like ``file_target``.
    """
    is_moved = True
    while True:
        try:
            is_moved = _rename(partial, target, RENAME_NOREPLACE)
        except FileExistsError:
            try:
                is_moved = exchange(partial, target)
            except FileNotFoundError:  # it has just gone
                continue
            if is_moved:
                try:
                    _check_kind(partial.lstat().st_mode, stat.S_IFREG, target)
                except WrongKindError:
                    exchange(partial, target)
                    raise
        break
    if not is_moved:
        file_target(target)
        partial.replace(target)


@contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Keep other processes from ``locked(path)`` until the body is done, by a hidden file beside ``path``.

    Raises BlockingIOError if another process has it and ``wait`` is False, and other OSErrors.
    """
    lock = lock_path(path)
    while True:
        with open(lock, "ab", opener=_for_the_owner) as file:
            try:
                fcntl.flock(file.fileno(), fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in NO_LOCKS:
                    raise
            status = os.fstat(file.fileno())
            if status.st_nlink == 0:  # the process that had it has just removed it
                continue
            _check_kind(status.st_mode, stat.S_IFREG, lock)
            try:
                yield
            finally:
                lock.unlink(missing_ok=True)
            return


def lock_path(path: Path) -> Path:
    """Return the hidden name of the lock of ``path``."""
    return path.with_name(f".{path.name}.lock")


def partial_path(path: Path) -> Path:
    """Return the hidden name beside ``path`` that is written before it is whole."""
    return path.with_name(f".{path.name}.partial")


@contextmanager
def partial_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder beside ``path`` for its owner only, which is removed at the end. Raises OSError."""
    folder = partial_path(path)
    remove(folder)
    try:
        folder.mkdir(mode=0o700)
        yield folder
    finally:
        with suppress(OSError):
            remove(folder)


def remove_leftovers(folder: Path, pattern: str = ".*.partial") -> None:
    """Remove what killed processes left of ``partial_folder`` below ``folder``, where nobody has the lock of the file."""
    for leftover in folder.glob(pattern):
        with suppress(OSError), locked(leftover.with_name(leftover.name[1:].removesuffix(".partial")), wait=False):
            remove(leftover)


def remove(path: Path) -> None:
    """Remove a folder with all that is in it, a file, or a link and not what it leads to. Raises OSError."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


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
    return _rename(one, other, RENAME_EXCHANGE)


def _rename(one: Path, other: Path, flag: int) -> bool:
    rename = _renameat2()
    if rename is None:
        return False
    if rename(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), flag) == 0:
        return True
    number = ctypes.get_errno()
    if number in CANNOT:
        return False
    raise OSError(number, os.strerror(number), str(one), None, str(other))


@functools.cache
def _renameat2() -> Any:
    """Return the C library's function, or None."""
    return getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)


def _for_the_owner(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)


# Cache directory for code that we execute and models that we run: writable by its owner only, verified by hash.

NOT_OTHERS = stat.S_IWGRP | stat.S_IWOTH
LARGEST = 1 << 30
"""Most bytes of a file in it; compiled libraries have far fewer."""


def user_cache() -> Path:
    """Return hybridge's folder in the user's cache, which holds what can be made again."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "hybridge"


def user_state() -> Path:
    """Return hybridge's folder for what it remembers for the user, such as conversations."""
    root = os.environ.get("XDG_STATE_HOME")
    return (Path(root) if root else Path.home() / ".local" / "state") / "hybridge"


def private_folder(path: Path, top: Path) -> None:
    """Make ``path`` and the folders above it up to ``top``, writable by their owner only.

    Existing folders of this user lose write permission for others. Raises OSError.
    """
    _target(top.parent, stat.S_IFDIR).mkdir(parents=True, exist_ok=True)
    for folder in _way(path, top):
        _target(folder, stat.S_IFDIR).mkdir(mode=0o700, exist_ok=True)
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
    for path in (file, hash_path(file)):
        if reason := others_control(path, top):
            return reason
    with open_regular(file, LARGEST) as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    with open_regular(hash_path(file), 4096) as kept:
        same = kept.read().split()[:1] == [digest.encode()]
    return None if same else f"{file} was altered or damaged: its SHA-256 is not the one beside it"


def others_control(path: Path, top: Path) -> str | None:
    """Check owner and mode of ``path``, and of the folders above it up to ``top``; return how others could change it, or None.

    Raises OSError if something is missing or cannot be read.
    """
    if _may_be_moved(top):
        return f"anybody may rename the folders in {top.parent}"
    for each in _way(path, top):
        status = each.stat()
        if status.st_uid not in (0, os.geteuid()):
            return f"{each} belongs to another user, of id {status.st_uid}"
        if status.st_mode & NOT_OTHERS:
            return f"others may write {each}"
    return None


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
