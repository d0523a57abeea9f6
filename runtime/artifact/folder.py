"""Open an artifact folder: check the size and hash of every file, and keep the program's files open from then on."""

from __future__ import annotations

import hashlib
import os
import weakref
from collections.abc import Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path

from hybridge.errors import ArtifactError, UsageError
from hybridge.runtime.artifact.manifest import FileEntry, Manifest, read_manifest
from hybridge.runtime.files import open_regular

LARGEST_SIDE_FILE = 1 << 28
"""Bytes of a tokenizer file or another one that is not the program: the largest vocabularies take a tenth of it."""


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """A folder whose files are what its manifest says.

    opened: the program's files by name, which stay open for as long as the artifact is used.
    """

    folder: Path
    manifest: Manifest
    opened: Mapping[str, CheckedFile] = field(default_factory=dict)

    @property
    def program(self) -> Path:
        """Return the file that the runtime loads: of onnxruntime's, the graph."""
        return self.folder / self.manifest.program_files[0]

    @property
    def tokenizer(self) -> Path | None:
        """Return ``tokenizer.json``; None if the checkpoint had none."""
        return self.folder / "tokenizer.json" if "tokenizer.json" in self.manifest.files else None

    @property
    def names(self) -> Collection[str]:
        """Return the names of the files that the manifest lists."""
        return self.manifest.files

    def read(self, name: str) -> bytes:
        """Return the bytes of a file that the manifest lists, checked once more. Raises ArtifactError."""
        return CheckedFile(self.folder / name, self.manifest.files[name]).read()

    def check_hashed(self) -> None:
        """Raise ArtifactError if the program is not what the manifest says, once it is hashed."""
        for file in self.opened.values():
            file.check_hashed()

    def check_unchanged(self) -> None:
        """Raise ArtifactError if the program was written to since it was opened."""
        for file in self.opened.values():
            file.check_unchanged()


def open_artifact(folder: str | Path, *, private_copy: bool = False, wait: bool = True) -> Artifact:
    """Check every file of ``folder`` against its manifest.

    Args:
        folder: the artifact.
        private_copy: copy the program into memory of this process, so that no change of the file can reach or end the process;
            for a .pte on Linux.
        wait: for the hashes of the program's files; if not, ``Model.open`` waits for them before it loads the program.

    Raises:
        ArtifactError: a file is missing, truncated or altered; the message names it.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ArtifactError(f"{folder} is not a folder; give the one that 'hybridge export' wrote.")
    manifest = read_manifest(folder)
    if private_copy and manifest.onnx:
        raise UsageError("a private copy can be had of a .pte alone: onnxruntime finds its weights by their path.")
    if missing := [name for name in manifest.program_files if name not in manifest.files]:
        raise ArtifactError(f"the manifest of {folder} lists no {', '.join(missing)}; export the model again.")
    opened = {}
    for name, expected in manifest.files.items():
        _check_name(folder, name, expected, is_program=name in manifest.program_files)
        is_program = name in manifest.program_files
        file = CheckedFile(folder / name, expected, private_copy=private_copy and is_program, wait=wait or not is_program)
        if is_program:
            opened[name] = file
    return Artifact(folder=folder, manifest=manifest, opened=opened)


def file_entry(path: Path) -> FileEntry:
    """Return the size and SHA-256 of a file."""
    with path.open("rb") as file:
        return FileEntry(sha256=hashlib.file_digest(file, "sha256").hexdigest(), size=path.stat().st_size)


def _check_name(folder: Path, name: str, expected: FileEntry, *, is_program: bool) -> None:
    if Path(name).name != name or "\0" in name:
        raise ArtifactError(f"the manifest of {folder} lists {name[:100]!r}, which is not a plain file name.")
    if not is_program and expected.size > LARGEST_SIDE_FILE:
        raise ArtifactError(f"the manifest of {folder} gives {name} {expected.size} bytes; {LARGEST_SIDE_FILE} are the most.")


DESCRIPTORS = Path("/proc/self/fd")
"""Links to the open files of this process, on Linux."""

Stamp = tuple[int, int, int, int, int]
"""Device, inode, size, and the times of the last change of the content and of the inode, in nanoseconds."""


class CheckedFile:
    """A file of an artifact, kept open, with the size and SHA-256 that the manifest names.

    The descriptor that was hashed is the one that is loaded, so that another file under this name changes nothing.
    """

    def __init__(self, path: Path, expected: FileEntry, *, private_copy: bool = False, wait: bool = True) -> None:
        """Open and hash the file.

        Args:
            path: the file.
            expected: its size and hash.
            private_copy: copy the bytes into sealed memory of this process.
            wait: until it is hashed; if not, another thread does that, and ``check_hashed`` waits for it.

        Raises:
            ArtifactError: the file is missing, not a regular file, or not what is expected.
            UsageError: a private copy is wanted and the system has no sealed memory.
        """
        self.path, self.expected = path, expected
        self._descriptor: int
        self._stamp: Stamp
        self._hashing: Future[None] | None = None
        try:
            with open_regular(path) as file:
                self._keep(os.dup(file.fileno()))
            self._check_size(self._stamp)  # before all of it is read
            if private_copy:
                self._keep(_private_copy(self._descriptor, path))
            if wait:
                self._check(self._stamp)
            else:
                thread = ThreadPoolExecutor(1)
                self._hashing = thread.submit(self._check, self._stamp)
                thread.shutdown(wait=False)
        except FileNotFoundError:
            raise ArtifactError(f"{path} is missing; export the model again or copy the whole folder.") from None
        except OSError as error:
            raise self._unreadable(error) from None

    @property
    def loadable(self) -> Path:
        """Return a path to this very file while it is open, or its name if the system has no such path."""
        opened = DESCRIPTORS / str(self._descriptor)
        return opened if opened.exists() else self.path

    def read(self) -> bytes:
        """Return the bytes after checking them again. Raises ArtifactError."""
        with self._content() as file:
            data = file.read(self.expected.size + 1)
        if hashlib.sha256(data).hexdigest() != self.expected.sha256:
            raise self._altered()
        return data

    def first(self, count: int) -> bytes:
        """Return the first ``count`` bytes, or all if there are fewer."""
        return os.pread(self._descriptor, count, 0)

    def check_hashed(self) -> None:
        """Raise ArtifactError if the file is not what is expected, once it is hashed."""
        try:
            if self._hashing is not None:
                self._hashing.result()
        except OSError as error:
            raise self._unreadable(error) from None

    def check_unchanged(self) -> None:
        """Raise ArtifactError if the bytes have changed. They are read again only if the file was touched."""
        if (now := self._now()) != self._stamp:
            self._check(now)
            self._stamp = now

    def check_loaded(self, path: Path) -> None:
        """Raise ArtifactError if a library that opened ``path`` may have loaded another file than this."""
        try:
            same = path != self.path or os.path.samestat(path.stat(), os.fstat(self._descriptor))
        except OSError:
            same = False
        if not same:
            raise ArtifactError(f"{self.path} was replaced while it was being loaded; load it again.")
        self.check_unchanged()

    def _keep(self, descriptor: int) -> None:
        """Take over ``descriptor``, which is closed with this object."""
        weakref.finalize(self, os.close, descriptor)
        self._descriptor = descriptor
        self._stamp = self._now()

    def _content(self) -> BufferedReader:
        """Return the file, open at its beginning."""
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        return open(self._descriptor, "rb", closefd=False)

    def _now(self) -> Stamp:
        status = os.fstat(self._descriptor)
        return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns

    def _check(self, now: Stamp) -> None:
        """Hash the whole file, which must keep the stamp ``now`` meanwhile."""
        self._check_size(now)
        with self._content() as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != self.expected.sha256 or self._now() != now:
            raise self._altered()

    def _check_size(self, now: Stamp) -> None:
        if (size := now[2]) != self.expected.size:
            raise ArtifactError(f"{self.path} has {size} bytes, but the manifest says {self.expected.size}; copy it again.")

    def _unreadable(self, error: OSError) -> ArtifactError:
        return ArtifactError(f"{self.path} cannot be read: {error.strerror}.")

    def _altered(self) -> ArtifactError:
        return ArtifactError(f"{self.path} was altered: its SHA-256 is not the manifest's. Copy it again.")


def _private_copy(descriptor: int, path: Path) -> int:
    """Return a descriptor of the same bytes in sealed memory: no process can change them, this one included."""
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
