"""Compile and load the kernels: once for each set of sources, compiler, ExecuTorch and processor; the result stays in a cache.

The compiler may use every instruction of this processor, because the processor's features are part of the cache's key: what
was built on another machine is never loaded here.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from hybridge.cache.errors import KernelsError

FOLDER = Path(__file__).parent
LOG = logging.getLogger(__name__)
FLAGS = (
    *(
        "-std=c++20",
        "-O3",
        "-march=native",
        "-fno-math-errno",
        "-fno-trapping-math",
        "-ffp-contract=fast",
        "-fPIC",
        "-fvisibility=hidden",
    ),
    *("-Wall", "-Wextra", "-Wno-unused-parameter", "-Wno-psabi", "-Wno-sign-compare"),
    *("-DNDEBUG", "-DET_USE_THREADPOOL", "-DC10_USING_CUSTOM_GENERATED_MACROS"),
)


def load() -> None:
    """Register the kernels with ExecuTorch's runtime in this process, building them if need be; once is enough.

    Raises KernelsError where there is no compiler or it fails.
    """
    _load(str(build()))


def build(*, again: bool = False) -> Path:
    """The compiled library; from the cache if it is there and not wanted ``again``. Raises KernelsError."""
    if again or not is_built():
        _compile(path())
    return path()


def path() -> Path:
    """Where the compiled library of these sources is or would be."""
    return cache_folder() / _key() / "libhybridge_kernels.so"


def is_built() -> bool:
    """Whether ``load`` would find the library without building it."""
    return path().exists()


def is_available() -> bool:
    """Whether this machine can have the kernels: they are built, or there is a compiler."""
    return is_built() or compiler() is not None


def cache_folder() -> Path:
    """Where built libraries are kept: ``hybridge/kernels`` of the user's cache."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "hybridge" / "kernels"


def compiler() -> str | None:
    """The C++ compiler: ``$CXX``, else the first that is found."""
    return next((found for name in (os.environ.get("CXX"), "g++", "clang++") if name and (found := shutil.which(name))), None)


def sources() -> list[Path]:
    """The kernels' C++ files."""
    return sorted(FOLDER.glob("*.cpp"))


@functools.cache
def _load(library: str) -> None:
    try:
        ctypes.CDLL(library)
    except OSError as error:
        raise KernelsError(
            f"{library} does not load ({error}); build it again with 'hybridge kernels build --force'."
        ) from None


def _compile(library: Path) -> None:
    chosen = compiler()
    if chosen is None:
        raise KernelsError(
            "hybridge's kernels are compiled at first use, but there is no C++ compiler here: install g++ or clang++, "
            "or set CXX. Artifacts that were exported with --kernels llm run without one."
        )
    # A warning is what is shown where nobody has set up logging, and a silent half minute would be worse.
    LOG.warning("Compiling hybridge's kernels for this processor: once, about half a minute")
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        objects = [str(Path(folder) / f"{source.stem}.o") for source in sources()]
        commands = [
            [chosen, *FLAGS, *_includes(), "-c", str(source), "-o", target]
            for source, target in zip(sources(), objects, strict=True)
        ]
        with ThreadPoolExecutor(os.cpu_count()) as compiling:
            list(compiling.map(_run, commands))
        built = Path(folder) / library.name
        _run([chosen, "-shared", *objects, "-o", str(built), *_links()])
        built.replace(library)  # whole or not at all: another process may be building the same


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise KernelsError(f"the kernels do not compile with {command[0]}:\n{done.stderr.strip()[-2000:]}")


def _includes() -> list[str]:
    include = _executorch() / "include"
    return [f"-I{include}", f"-I{include / 'executorch/runtime/core/portable_type/c10'}", f"-I{FOLDER}"]


def _links() -> list[str]:
    runtime = next((_executorch() / "extension" / "pybindings").glob("_portable_lib.*.so"))
    return [f"-L{runtime.parent}", f"-l:{runtime.name}", f"-Wl,-rpath,{runtime.parent}"]


def _executorch() -> Path:
    spec = find_spec("executorch")
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(next(iter(spec.submodule_search_locations)))


@functools.cache
def _key() -> str:
    """Names whatever changes the compiled code."""
    digest = hashlib.sha256()
    for part in _ingredients():
        digest.update(part)
    return digest.hexdigest()[:16]


def _ingredients() -> Iterator[bytes]:
    for path in [*sources(), *sorted(FOLDER.glob("*.h"))]:
        yield path.read_bytes()
    chosen = compiler() or ""
    yield f"{chosen} {_banner(chosen)} {FLAGS} {version('executorch')} {_executorch()} {platform.machine()}".encode()
    yield _features().encode()


def _banner(compiler: str) -> str:
    return subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout if compiler else ""


def _features() -> str:
    """The processor's instruction sets, as Linux lists them; elsewhere what the platform calls the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
