"""C++ that is compiled at first use, against the ExecuTorch that is installed; what was built stays in the user's cache.

A wheel brings what would be compiled, for its platform, and the libraries of the pinned ExecuTorch (hatch_build.py).
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hybridge.errors import KernelsError
from hybridge.runtime.files import (
    distrust,
    file_target,
    hash_path,
    locked,
    partial_folder,
    private_folder,
    remove,
    sync,
    write_hash,
)
from hybridge.runtime.pinned import (
    COPIES,
    EXECUTORCH,
    RUNTIME,
    THREADS,
    executorch_version,
    include_folders,
    library_folder,
    uses_copies,
)
from hybridge.runtime.platforms import HERE


def compiler() -> str | None:
    """Return the C++ compiler: ``$CXX``, or the first that is found."""
    return next((found for name in (os.environ.get("CXX"), "g++", "clang++") if name and (found := shutil.which(name))), None)


def cache_folder(kind: str) -> Path:
    """Return the folder of built files: ``hybridge/<kind>`` in the user's cache."""
    return _top() / kind


def prebuilt(name: str) -> Path | None:
    """Return the library in our wheel, which is trusted like its Python; None for another ExecuTorch."""
    path = COPIES / name
    return path if path.exists() and executorch_version() == EXECUTORCH else None


def is_built(path: Path) -> bool:
    """Return whether something was built at ``path``; false if we may not look there."""
    return os.path.exists(path) and os.path.exists(hash_path(path))


def built(path: Path, make: Callable[[Path], None], *, again: bool = False) -> Path:
    """Return ``path`` after ``make`` has built it; the first process builds and others wait.

    The file appears whole or not at all, with its hash beside it, in a folder that only the user may write. Leftovers of killed
    builds are removed.

    Args:
        path: the file.
        make: builds it at the path that it is given.
        again: build it even if it exists.

    Raises:
        KernelsError: the cache cannot be written, or others may have written the file. What ``make`` raises is raised too.
    """
    try:
        if again or not is_built(path):
            _build_alone(path, make, again)
    except OSError as error:
        raise KernelsError(
            f"{path} cannot be written: {error.strerror or error}; let XDG_CACHE_HOME be a folder that you may write."
        ) from error
    _check(path)
    return path


def _build_alone(path: Path, make: Callable[[Path], None], again: bool) -> None:
    private_folder(path.parent, _top())
    for each in (path, hash_path(path)):
        file_target(each)  # refuses what is no file
    for leftover in path.parent.parent.glob("*/.*.partial"):
        with suppress(OSError), locked(leftover.with_name(leftover.name[1:].removesuffix(".partial")), wait=False):
            remove(leftover)
    with locked(path):
        if again or not is_built(path):
            _build(path, make)


def _build(path: Path, make: Callable[[Path], None]) -> None:
    with partial_folder(path) as folder:
        unfinished = folder / path.name
        make(unfinished)
        unfinished.chmod(0o755)  # whatever the umask lets others do; the folder is closed to them
        write_hash(unfinished)
        path.unlink(missing_ok=True)  # an older one beside a newer hash would be refused as damaged
        for each in (hash_path(unfinished), unfinished):  # the library last: without it nothing is built
            sync(each)
            each.replace(path.with_name(each.name))
        sync(path.parent)


def _check(path: Path) -> None:
    try:
        reason = distrust(path, _top())
    except OSError as error:
        reason = f"{error.filename or path} cannot be read: {error.strerror}"
    if reason:
        raise KernelsError(
            f"{reason}; it is not run. Remove {path.parent} (for kernels 'hybridge kernels build --force' does), and let "
            "XDG_CACHE_HOME be a folder that you alone may write."
        )


def _top() -> Path:
    """Return the folder of everything that is built here."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "hybridge"


def errors_of(command: Sequence[str], folder: Path) -> str | None:
    """Run a compiler, whose temporary files go into ``folder``; return the end of its errors if it fails."""
    environment = os.environ | {"TMPDIR": str(folder)}  # it is removed, whatever ends the compiler
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    return f"with {command[0]}:\n{done.stderr.strip()[-2000:]}" if done.returncode else None


def compile_all(commands: Iterable[Sequence[str]], folder: Path) -> str | None:
    """Run compilers side by side, one for each processor; returns what ``errors_of`` says of the first that fails."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return next(filter(None, pool.map(lambda each: errors_of(each, folder), commands)), None)


def include_flags() -> list[str]:
    """Return the flags for ExecuTorch's headers, whose own warnings are not ours to see. Raises KernelsError without them."""
    if uses_copies():
        raise KernelsError(
            f"compiling needs the headers of ExecuTorch {EXECUTORCH}, and this installation has its libraries alone: "
            "pip install 'hybridge[export]'."
        )
    return [flag for folder in include_folders() for flag in ("-isystem", str(folder))]


def link_flags(*libraries: str) -> list[str]:
    """Return the flags that link a program to ExecuTorch's runtime and more of its ``libraries``, and find them where they are.

    All of them are loaded with what is linked, whether or not it names a symbol of theirs.
    """
    return [*plugin_flags(*libraries), f"-Wl,-rpath,{library_folder()}"]


def plugin_flags(*libraries: str) -> list[str]:
    """Return the flags for what is loaded into a process that has these libraries: it names them, and not where they are."""
    names = [f"-l{name}" for name in (RUNTIME, THREADS, *libraries)]
    return [*HERE.keep_libraries, f"-L{library_folder()}", *names]


def load_plugin(path: Path, *libraries: str) -> ctypes.CDLL:
    """Load what was linked with ``plugin_flags`` of the same libraries. Raises OSError."""
    load_libraries(*libraries)
    return ctypes.CDLL(str(path))


def load_libraries(*libraries: str) -> None:
    """Load ExecuTorch's runtime and more of its ``libraries`` into this process. Raises OSError."""
    for name in (RUNTIME, THREADS, *libraries):
        ctypes.CDLL(str(library_folder() / HERE.library(name)))


def key(files: Sequence[Path], compiler: str | None, flags: Sequence[str]) -> str:
    """Return a name of whatever changes the compiled code: ``files``, compiler, ``flags``, ExecuTorch and kind of processor."""
    digest = hashlib.sha256()
    for part in _ingredients(files, compiler or "", flags):
        digest.update(part)
    return digest.hexdigest()[:16]


def _ingredients(files: Sequence[Path], compiler: str, flags: Sequence[str]) -> Iterator[bytes]:
    for path in files:
        yield path.read_bytes()
    yield f"{compiler} {_banner(compiler)} {flags} {executorch_version()} {library_folder()} {platform.machine()}".encode()


def _banner(compiler: str) -> str:
    return subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout if compiler else ""


# The instruction sets that the kernels are compiled for, as dispatch/instruction_sets.txt lists them.


TABLE = Path(__file__).parent / "dispatch" / "instruction_sets.txt"
SAME = {"arm64": "aarch64", "amd64": "x86_64"}


@dataclass(frozen=True)
class InstructionSet:
    """A name and the compiler's flags."""

    name: str
    flags: tuple[str, ...]


def instruction_sets(machine: str | None = None) -> list[InstructionSet]:
    """Return those of a processor by its name (this one's if left out), a better one after a worse."""
    wanted = (machine or platform.machine()).lower()
    lines = [line.split() for line in TABLE.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    sets = [InstructionSet(name, tuple(flags)) for processor, name, *flags in lines if processor == SAME.get(wanted, wanted)]
    return sets or [InstructionSet("plain", ())]
