"""Load the kernels: those that the wheel brought, or compiled here.

They are compiled once for each set of sources, compiler and ExecuTorch; the result stays in a cache, and comes before the
wheel's.

The library has the kernels for every instruction set of dispatch/instruction_sets.txt. It chooses the best that the processor
has when it is loaded, or the one that ``$HYBRIDGE_ISA`` names.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
from pathlib import Path
from typing import Any

from hybridge.errors import KernelsError, UsageError
from hybridge.runtime.kernels import compiling
from hybridge.runtime.platforms import library_file

FOLDER = Path(__file__).parent
NAME = library_file("hybridge_kernels")
CHOICE = "HYBRIDGE_ISA"
LOG = logging.getLogger(__name__)


def load() -> str:
    """Register the kernels with ExecuTorch's runtime, building them if need be; return the instruction set that runs.

    Raises:
        KernelsError: there is no compiler or it fails, or others may have written the library.
        UsageError: this processor has no ``$HYBRIDGE_ISA``.
    """
    return _load(str(build()))


def available_instruction_sets() -> list[str]:
    """Return the instruction sets that this processor has, better ones last. Raises what ``load`` raises."""
    load()
    return (_text(compiling.load_plugin(path()).hybridge_instruction_sets) or "").split()


def build(*, again: bool = False) -> Path:
    """Compile the library, or find it if it is not wanted ``again``. Raises KernelsError."""
    if not again and path() == compiling.prebuilt(NAME):
        return path()
    if (again or not is_built()) and (missing := compiling.missing_tool()):
        raise KernelsError(
            f"hybridge's kernels are compiled at first use, but {missing}. Artifacts that were exported with --kernels llm run "
            "without them."
        )
    return compiling.built(_compiled(), _compile, again=again)


def path() -> Path:
    """Return the path of the library, compiled or not."""
    return compiling.own_or_prebuilt(cache_folder(), _compiled, NAME)


def is_built() -> bool:
    """Return whether ``load`` would find the library without compiling it."""
    return compiling.prebuilt(NAME) is not None or compiling.is_built(_compiled())


def is_available() -> bool:
    """Return whether this machine can have the kernels: they are built, or there is what compiles them."""
    return is_built() or compiling.missing_tool() is None


def cache_folder() -> Path:
    """Return the folder of built libraries: ``hybridge/kernels`` in the user's cache."""
    return compiling.cache_folder("kernels")


@functools.cache
def _load(library: str) -> str:
    try:
        loaded = compiling.load_plugin(Path(library))
    except OSError as error:
        raise KernelsError(
            f"{library} does not load ({error}); build it again with 'hybridge kernels build --force'."
        ) from None
    if (chosen := _text(loaded.hybridge_instruction_set)) is None:
        there = (_text(loaded.hybridge_instruction_sets) or "").replace(" ", ", ")
        raise UsageError(
            f"{CHOICE} is {os.environ.get(CHOICE)}; this processor has {there}. Set it to one of them, or not at all."
        )
    return chosen


def _compiled() -> Path:
    """Return the path of the compiled library of these sources."""
    return cache_folder() / _key() / NAME


def _text(function: Any) -> str | None:
    function.restype = ctypes.c_char_p
    answer: bytes | None = function()
    return answer if answer is None else answer.decode()


def _compile(library: Path) -> None:
    # A warning is shown even if logging is not set up; a silent minute would be worse.
    LOG.warning("Compiling hybridge's kernels for each instruction set: once, about a minute")
    if errors := compiling.compile_library("hybridge_kernels_library", library):
        raise KernelsError(f"the kernels do not compile {errors}")


@functools.cache
def _key() -> str:
    sources = [each for each in sorted(FOLDER.rglob("*")) if each.suffix in (".cpp", ".h", ".txt")]
    return compiling.key([*sources, compiling.NATIVE / "CMakeLists.txt"])
