"""A file whose bytes were checked, and whose descriptor is what is loaded: another file of that name changes nothing."""

from __future__ import annotations

import hashlib
import os
import weakref
from io import BufferedReader
from pathlib import Path

from hybridge.cache.errors import ArtifactError, UsageError
from hybridge.runtime.artifacts.manifest import FileEntry
from hybridge.runtime.files.regular import open_regular

DESCRIPTORS = Path("/proc/self/fd")
"""Where Linux has every open file by its number."""

Stamp = tuple[int, int, int, int, int]
"""Device, inode, bytes, and the times of the last change of the content and of anything, in nanoseconds."""


class CheckedFile:
    """A file of an artifact, open for as long as this is, with the size and SHA-256 that the manifest names."""

    def __init__(self, path: Path, expected: FileEntry, *, private_copy: bool = False) -> None:
        """private_copy: take the bytes into memory of this process's own, which nobody can change.

        Raises ArtifactError, naming the file, where it is missing, no regular file, or not what is expected, and UsageError for
        a private copy where the system has no such memory.
        """
        self.path, self.expected = path, expected
        self._descriptor: int
        self._stamp: Stamp
        try:
            with open_regular(path) as file:
                self._keep(os.dup(file.fileno()))
            self._check_size(self._stamp)  # before all of it is read
            if private_copy:
                self._keep(_private_copy(self._descriptor, path))
            self._check(self._stamp)
        except FileNotFoundError:
            raise ArtifactError(f"{path} is missing; export the model again or copy the whole folder.") from None
        except OSError as error:
            raise ArtifactError(f"{path} cannot be read: {error.strerror}.") from None

    @property
    def loadable(self) -> Path:
        """A path to this very file for as long as it is open, where the system has one."""
        opened = DESCRIPTORS / str(self._descriptor)
        return opened if opened.exists() else self.path

    def read(self) -> bytes:
        """Return the bytes, again checked. Raises ArtifactError."""
        with self._content() as file:
            data = file.read(self.expected.size + 1)
        if hashlib.sha256(data).hexdigest() != self.expected.sha256:
            raise self._altered()
        return data

    def first(self, count: int) -> bytes:
        """Return the first ``count`` bytes, or all where there are fewer."""
        return os.pread(self._descriptor, count, 0)

    def check_unchanged(self) -> None:
        """Raises ArtifactError where the bytes are others by now. They are read again only where the file was touched."""
        if (now := self._now()) != self._stamp:
            self._check(now)
            self._stamp = now

    def check_loaded(self, path: Path) -> None:
        """Raises ArtifactError where somebody who went by ``path`` may have loaded another file than this."""
        try:
            same = path != self.path or os.path.samestat(path.stat(), os.fstat(self._descriptor))
        except OSError:
            same = False
        if not same:
            raise ArtifactError(f"{self.path} was replaced while it was being loaded; load it again.")
        self.check_unchanged()

    def _keep(self, descriptor: int) -> None:
        """Have ``descriptor`` from now on; it is closed with this."""
        weakref.finalize(self, os.close, descriptor)
        self._descriptor = descriptor
        self._stamp = self._now()

    def _content(self) -> BufferedReader:
        """From the beginning."""
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        return open(self._descriptor, "rb", closefd=False)

    def _now(self) -> Stamp:
        status = os.fstat(self._descriptor)
        return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns

    def _check(self, now: Stamp) -> None:
        """Read all of it; ``now`` is how it is before."""
        self._check_size(now)
        with self._content() as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != self.expected.sha256 or self._now() != now:
            raise self._altered()

    def _check_size(self, now: Stamp) -> None:
        if (size := now[2]) != self.expected.size:
            raise ArtifactError(f"{self.path} has {size} bytes, but the manifest says {self.expected.size}; copy it again.")

    def _altered(self) -> ArtifactError:
        return ArtifactError(f"{self.path} was altered: its SHA-256 is not the manifest's. Copy it again.")


def _private_copy(descriptor: int, path: Path) -> int:
    """The same bytes in memory without a name, sealed: no process can change them any more, this one included."""
    if not hasattr(os, "memfd_create"):
        raise UsageError(f"this system has no memory for a private copy of {path}; load it without.")
    import fcntl

    copy = os.memfd_create(path.name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    size, sent = os.fstat(descriptor).st_size, 0
    while sent < size and (now := os.sendfile(copy, descriptor, sent, size - sent)):
        sent += now
    seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
    fcntl.fcntl(copy, fcntl.F_ADD_SEALS, seals)
    return copy
