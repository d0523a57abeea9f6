"""Programs that are kept apart from weights, in the user's cache.

A program's file is the same for all checkpoints of one shape but for the constants that are their tensors, or are computed of
those. What is kept is the rest of the file, and for each constant its size and its source: how it comes of a checkpoint.
"""

from __future__ import annotations

import functools
import hashlib
import io
import lzma
import os
import platform
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked

from hybridge.errors import KernelsError
from hybridge.runtime.artifact.manifest import Manifest, MethodEntry
from hybridge.runtime.files import hash_path, read_regular, remove
from hybridge.runtime.kernels.compiling import built, cache_folder, check_built, is_built
from hybridge.runtime.pinned import EXECUTORCH
from hybridge.runtime.version import code_version

KIND = "programs"
"""The folder in the user's cache."""
FILE = "program"
LARGEST = 1 << 26
"""Most bytes of a kept program; large ones have 2 MB."""
MOST_BYTES = 1 << 26
"""Most bytes of all kept programs; those that were used last stay."""

Source = Any
"""An expression in JSON that makes a constant of a checkpoint's tensors."""


@dataclass(frozen=True, kw_only=True)
class Constant:
    """A constant that the tensors of a checkpoint decide. size: its bytes."""

    size: int
    source: Source


class UnfitProgramError(Exception):
    """A kept program is not one for this checkpoint."""


@dataclass(frozen=True, kw_only=True)
class KeptProgram:
    """A program's file in parts, in their order, and what a manifest says of its methods.

    manifest: of the artifact that it was made for, if the sources of the constants are a GGUF file's tensors.
    """

    parts: Sequence[bytes | Constant]
    methods: dict[str, MethodEntry]
    manifest: Manifest | None = None

    def write(self, path: Path, fill: Callable[[Source], memoryview]) -> None:
        """Write the file; an older one is not changed, because a session may have mapped it.

        fill: returns the bytes of a constant by its source. Raises UnfitProgramError, OSError, and what ``fill`` raises.
        """
        path.unlink(missing_ok=True)
        with path.open("wb") as file:
            for part in self.parts:
                data = fill(part.source) if isinstance(part, Constant) else memoryview(part)
                if isinstance(part, Constant) and data.nbytes != part.size:
                    raise UnfitProgramError(f"a constant has {data.nbytes} bytes, not {part.size}")
                file.write(data)


# The key of what is kept

PINNED: Mapping[str, str] = {"torch": "2.13.0", "executorch": EXECUTORCH, "transformers": "5.23.0", "torchao": "0.18.0"}
"""The libraries that make programs, in the versions that the extra ``export`` installs.

A program that they made serves everywhere: nothing of it depends on the machine or on Python. One that other versions made
serves where those are installed.
"""


@functools.cache
def installed_versions() -> Mapping[str, str] | None:
    """Return the installed versions of these libraries, None if one is missing; a build's own suffix is left out."""
    found = {name: _version(name) for name in PINNED}
    return {name: each.partition("+")[0] for name, each in found.items() if each} if all(found.values()) else None


@functools.cache
def exporting_code() -> str:
    """Return a hash of the code that decides a program, of the libraries' versions and of this Python's."""
    libraries = [_version(name) for name in (*PINNED, "numpy")]
    return hashlib.sha256(f"{code_version()} {libraries} {platform.python_version()} {platform.machine()}".encode()).hexdigest()


def _version(library: str) -> str | None:
    try:
        return version(library)
    except PackageNotFoundError:
        return None


# The file of a kept program: a zip archive of the parts in JSON, and of all their bytes


@checked(config=ConfigDict(extra="forbid"), frozen=True, kw_only=True)
class Contents:
    """``contents.json``.

    parts: number of bytes of each part, with the source of a constant; methods, manifest: as in a KeptProgram.
    """

    parts: list[tuple[int, Any]]
    methods: dict[str, MethodEntry]
    manifest: Manifest | None = None


CONTENTS = TypeAdapter(Contents)


def find_program(key: str) -> KeptProgram | None:
    """Return the program that is kept for a shape; None if there is none that is whole and that only this user may write."""
    path = cache_folder(KIND) / key / FILE
    if not is_built(path):
        return None
    try:
        check_built(path)
        data = read_regular(path, LARGEST)
        os.utime(path)
    except (KernelsError, OSError):
        return None
    return read_program(data)


def read_program(file: bytes) -> KeptProgram | None:
    """Return the program in a kept file; None for one that is damaged."""
    try:
        with zipfile.ZipFile(io.BytesIO(file)) as archive:
            contents = CONTENTS.validate_json(_member(archive, "contents.json"))
            data = io.BytesIO(_member(archive, "bytes"))
    except (ValueError, ValidationError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, LookupError, NotImplementedError):
        return None
    parts = [data.read(size) if source is None else Constant(size=size, source=source) for size, source in contents.parts]
    return KeptProgram(parts=parts, methods=contents.methods, manifest=contents.manifest)


def program_file(program: KeptProgram) -> bytes:
    """Return the file of a program."""
    parts = [(part.size, part.source) if isinstance(part, Constant) else (len(part), None) for part in program.parts]
    contents = Contents(parts=parts, methods=program.methods, manifest=program.manifest)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("contents.json", CONTENTS.dump_json(contents))
        archive.writestr("bytes", b"".join(part for part in program.parts if isinstance(part, bytes)))
    return file.getvalue()


def keep_program(key: str, program: KeptProgram) -> None:
    """Keep a program for its shape, unless the cache cannot be written."""
    data = program_file(program)

    def make(path: Path) -> None:
        path.write_bytes(data)

    with suppress(KernelsError, OSError):
        built(cache_folder(KIND) / key / FILE, make, again=True)
        _forget_others()


def _member(archive: zipfile.ZipFile, name: str) -> bytes:
    if archive.getinfo(name).file_size > LARGEST:
        raise ValueError(f"{name} is too large")
    return archive.read(name)


def _forget_others() -> None:
    """Remove the programs that were used least recently, beyond MOST_BYTES."""
    left = MOST_BYTES
    found = [(path.stat(), path) for path in cache_folder(KIND).glob(f"*/{FILE}")]
    for status, path in sorted(found, key=lambda each: each[0].st_mtime_ns, reverse=True):
        left -= status.st_size
        if left < 0:
            with suppress(OSError):
                hash_path(path).unlink(missing_ok=True)  # without it, nothing is kept
                remove(path.parent)
