"""Compile and load the kernels: once for each set of sources, compiler, ExecuTorch and processor; the result stays in a cache.

The compiler may use every instruction of this processor, because the processor's features are part of the cache's key: what
was built on another machine is never loaded here.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hybridge.cache.errors import KernelsError
from hybridge.runtime.kernels import compiling
from hybridge.runtime.pinned import MACROS

FOLDER = Path(__file__).parent
compiler = compiling.compiler
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
    *("-DNDEBUG", *MACROS),
)


def load() -> None:
    """Register the kernels with ExecuTorch's runtime in this process, building them if need be; once is enough.

    Raises KernelsError where there is no compiler or it fails.
    """
    _load(str(build()))


def build(*, again: bool = False) -> Path:
    """Build the compiled library, or find it in the cache if it is not wanted ``again``. Raises KernelsError."""
    if again or not is_built():
        _compile(path())
    return path()


def path() -> Path:
    """Return where the compiled library of these sources is or would be."""
    return cache_folder() / _key() / "libhybridge_kernels.so"


def is_built() -> bool:
    """Return whether ``load`` would find the library without building it."""
    return path().exists()


def is_available() -> bool:
    """Return whether this machine can have the kernels: they are built, or there is a compiler."""
    return is_built() or compiler() is not None


def cache_folder() -> Path:
    """Return where built libraries are kept: ``hybridge/kernels`` of the user's cache."""
    return compiling.cache_folder("kernels")


def sources() -> list[Path]:
    """Return the kernels' C++ files."""
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
    with compiling.appearing(library) as built:
        objects = [str(built.with_name(f"{source.stem}.o")) for source in sources()]
        commands = [
            [chosen, *FLAGS, *compiling.include_flags(), f"-I{FOLDER}", "-c", str(source), "-o", target]
            for source, target in zip(sources(), objects, strict=True)
        ]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(_run, commands))
        _run([chosen, "-shared", *objects, "-o", str(built), *compiling.link_flags()])


def _run(command: Sequence[str]) -> None:
    if errors := compiling.errors_of(command):
        raise KernelsError(f"the kernels do not compile {errors}")


@functools.cache
def _key() -> str:
    return compiling.key([*sources(), *sorted(FOLDER.glob("*.h"))], compiler(), FLAGS)
