"""C++ that is compiled at first use, against the ExecuTorch that is installed; what was built stays in the user's cache.

``native/CMakeLists.txt`` has the sources and flags. A wheel brings what would be compiled, for its platform, and the libraries
of the pinned ExecuTorch (hatch_build.py).
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from hybridge.errors import KernelsError
from hybridge.runtime.files import (
    distrust,
    file_target,
    hash_path,
    locked,
    partial_folder,
    private_folder,
    remove_leftovers,
    sync,
    user_cache,
    write_hash,
)
from hybridge.runtime.pinned import (
    COPIES,
    EXECUTORCH,
    RUNTIME,
    THREADS,
    executorch,
    executorch_version,
    library_folder,
    uses_copies,
)
from hybridge.runtime.platforms import library_file

NATIVE = Path(__file__).parents[1] / "native"
"""The folder of the CMake project."""
OF_OTHERS = ("CFLAGS", "CXXFLAGS", "LDFLAGS", "CMAKE_BUILD_TYPE", "CMAKE_GENERATOR")
"""Environment variables of CMake's that choose flags: a library in the cache is named by its sources and compiler alone."""


def compiler() -> str | None:
    """Return the C++ compiler: ``$CXX``, or the first that is found."""
    return next((found for name in (os.environ.get("CXX"), "g++", "clang++") if name and (found := shutil.which(name))), None)


def cache_folder(kind: str) -> Path:
    """Return the folder of built files: ``hybridge/<kind>`` in the user's cache."""
    return user_cache() / kind


def prebuilt(name: str) -> Path | None:
    """Return the library in our wheel, which is trusted like its Python; None for another ExecuTorch."""
    path = COPIES / name
    return path if path.exists() and executorch_version() == EXECUTORCH else None


def own_or_prebuilt(folder: Path, own: Callable[[], Path], name: str) -> Path:
    """Return the path of a library: the one that was compiled here, or our wheel's, or where it is to be compiled.

    Args:
        folder: of all that were compiled here.
        own: returns the path of the one of these sources, all of which it reads: that takes long.
        name: of the library.
    """
    wheel = prebuilt(name)
    if wheel is not None and not folder.is_dir():
        return wheel
    return compiled if is_built(compiled := own()) else wheel or compiled


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
    check_built(path)
    return path


def _build_alone(path: Path, make: Callable[[Path], None], again: bool) -> None:
    private_folder(path.parent, user_cache())
    for each in (path, hash_path(path)):
        file_target(each)  # refuses what is no file
    remove_leftovers(path.parent.parent, "*/.*.partial")
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


def check_built(path: Path) -> None:
    """Raise KernelsError if others may have written the built file ``path``, or it is not as it was built."""
    try:
        reason = distrust(path, user_cache())
    except OSError as error:
        reason = f"{error.filename or path} cannot be read: {error.strerror}"
    if reason:
        raise KernelsError(
            f"{reason}; it is not run. Remove {path.parent} (for kernels 'hybridge kernels build --force' does), and let "
            "XDG_CACHE_HOME be a folder that you alone may write."
        )


def cmake() -> str | None:
    """Return the CMake beside this Python, as pip installs it, or the first on PATH."""
    return shutil.which("cmake", path=os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", ""))))


def missing_tool() -> str | None:
    """Return what is missing here for compiling, and how to get it; None if nothing is."""
    if compiler() is None:
        return "there is no C++ compiler here: install g++ or clang++, or set CXX"
    if cmake() is None:
        return "there is no CMake here: pip install cmake"
    return None if _generator() else "there is neither make nor ninja here: install one of them"


def compile_library(target: str, library: Path) -> str | None:
    """Build a target of the CMake project as file ``library``; return the end of what the tools print if they fail.

    Raises KernelsError if ExecuTorch's headers or a tool are missing.
    """
    if uses_copies():
        raise KernelsError(
            f"compiling needs the headers of ExecuTorch {EXECUTORCH}, and this installation has its libraries alone: "
            "pip install 'hybridge[export]'."
        )
    if missing := missing_tool():
        raise KernelsError(f"{missing}.")
    tool, folder = str(cmake()), library.with_name("build")
    options = {"CMAKE_PREFIX_PATH": executorch(), "CMAKE_CXX_COMPILER": compiler(), "HYBRIDGE_INSTALL": "OFF"}
    configure = [tool, "-S", str(NATIVE), "-B", str(folder), "-G", str(_generator())]
    configure += [f"-D{name}={value}" for name, value in options.items()]
    build = [tool, "--build", str(folder), "--target", target, "--parallel", str(os.cpu_count() or 1)]
    if errors := errors_of(configure, library.parent) or errors_of(build, library.parent):
        return f"with {compiler()}:\n{errors}"
    (folder / "python" / library.name).replace(library)
    return None


def _generator() -> str | None:
    generators = {"ninja": "Ninja", "make": "Unix Makefiles"}
    return next((generator for program, generator in generators.items() if shutil.which(program)), None)


def errors_of(command: Sequence[str], folder: Path) -> str | None:
    """Run a command, whose temporary files go into ``folder``; return the end of what it prints if it fails."""
    environment = {name: value for name, value in os.environ.items() if name not in OF_OTHERS}
    environment["TMPDIR"] = str(folder)  # it is removed, whatever ends the compiler
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    return (done.stdout + done.stderr).strip()[-2000:] if done.returncode else None


def load_plugin(path: Path, *libraries: str) -> ctypes.CDLL:
    """Load a library of ours, after those of ExecuTorch that it names. Raises OSError."""
    load_libraries(*libraries)
    return ctypes.CDLL(str(path))


def load_libraries(*libraries: str) -> None:
    """Load ExecuTorch's runtime and more of its ``libraries`` into this process. Raises OSError."""
    for name in (RUNTIME, THREADS, *libraries):
        ctypes.CDLL(str(library_folder() / library_file(name)))


def key(files: Sequence[Path]) -> str:
    """Return a name of whatever changes the compiled code: ``files``, compiler, ExecuTorch and kind of processor."""
    digest = hashlib.sha256()
    for part in _ingredients(files, compiler() or ""):
        digest.update(part)
    return digest.hexdigest()[:16]


def _ingredients(files: Sequence[Path], compiler: str) -> Iterator[bytes]:
    for path in files:
        yield path.read_bytes()
    yield f"{compiler} {_banner(compiler)} {executorch_version()} {library_folder()} {platform.machine()}".encode()


def _banner(compiler: str) -> str:
    return subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout if compiler else ""
