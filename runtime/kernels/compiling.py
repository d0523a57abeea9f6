"""C++ that is compiled at first use, against the ExecuTorch that is installed; what was built stays in the user's cache."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from hybridge.runtime.pinned import RUNTIME, THREADS, executorch, include_folders, library_folder
from hybridge.runtime.platforms import HERE


def compiler() -> str | None:
    """Return the C++ compiler: ``$CXX``, else the first that is found."""
    return next((found for name in (os.environ.get("CXX"), "g++", "clang++") if name and (found := shutil.which(name))), None)


def cache_folder(kind: str) -> Path:
    """Return where what was built is kept: ``hybridge/<kind>`` of the user's cache."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "hybridge" / kind


def errors_of(command: Sequence[str]) -> str | None:
    """Run a compiler; the end of what it says where it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return f"with {command[0]}:\n{done.stderr.strip()[-2000:]}" if done.returncode else None


@contextmanager
def appearing(path: Path) -> Iterator[Path]:
    """Yield where to build what is to be at ``path``, which then appears whole or not at all: others may build the same."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        yield Path(folder) / path.name
        (Path(folder) / path.name).replace(path)


def include_flags() -> list[str]:
    """Return the flags for ExecuTorch's headers, whose own warnings are not ours to see."""
    return [flag for folder in include_folders() for flag in ("-isystem", str(folder))]


def link_flags(*libraries: str) -> list[str]:
    """Return the flags that link to ExecuTorch's runtime and more of its ``libraries``, and find them where they are.

    All of them are loaded with what is linked, whether or not it names a symbol of theirs.
    """
    folder = library_folder()
    names = [f"-l{name}" for name in (RUNTIME, THREADS, *libraries)]
    return [*HERE.keep_libraries, f"-L{folder}", *names, f"-Wl,-rpath,{folder}"]


def key(files: Sequence[Path], compiler: str | None, flags: Sequence[str]) -> str:
    """Return a name of whatever changes the compiled code: ``files``, compiler, ``flags``, ExecuTorch and kind of processor."""
    digest = hashlib.sha256()
    for part in _ingredients(files, compiler or "", flags):
        digest.update(part)
    return digest.hexdigest()[:16]


def _ingredients(files: Sequence[Path], compiler: str, flags: Sequence[str]) -> Iterator[bytes]:
    for path in files:
        yield path.read_bytes()
    yield f"{compiler} {_banner(compiler)} {flags} {version('executorch')} {executorch()} {platform.machine()}".encode()


def _banner(compiler: str) -> str:
    return subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout if compiler else ""
