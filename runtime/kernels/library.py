"""Load the kernels: those that the wheel brought, or compiled here.

They are compiled once for each set of sources, compiler and ExecuTorch; the result stays in a cache, and comes before the
wheel's.

The library has the kernels for every instruction set of instruction_sets.py. It chooses the best that the processor has when it
is loaded, or the one that ``$HYBRIDGE_ISA`` names.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hybridge.errors import KernelsError, UsageError
from hybridge.runtime.kernels import compiling
from hybridge.runtime.kernels.compiling import TABLE, instruction_sets
from hybridge.runtime.pinned import MACROS
from hybridge.runtime.platforms import HERE

FOLDER = Path(__file__).parent
NAME = HERE.library("hybridge_kernels")
CHOICE = "HYBRIDGE_ISA"
compiler = compiling.compiler
LOG = logging.getLogger(__name__)
FLAGS = (
    *(
        "-std=c++20",
        "-O3",
        "-fno-math-errno",
        "-fno-trapping-math",
        "-ffp-contract=fast",
        "-fPIC",
        "-fvisibility=hidden",
    ),
    *("-Wall", "-Wextra", "-Wno-unused-parameter", "-Wno-psabi", "-Wno-sign-compare"),
    *("-DNDEBUG", *MACROS),
)


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
    if again or not is_built():
        _compiler()
    return compiling.built(_compiled(), _compile, again=again)


def path() -> Path:
    """Return the path of the library, compiled or not."""
    own = _compiled()
    return own if compiling.is_built(own) else compiling.prebuilt(NAME) or own


def is_built() -> bool:
    """Return whether ``load`` would find the library without compiling it."""
    return compiling.is_built(_compiled()) or compiling.prebuilt(NAME) is not None


def is_available() -> bool:
    """Return whether this machine can have the kernels: they are built, or there is a compiler."""
    return is_built() or compiler() is not None


def cache_folder() -> Path:
    """Return the folder of built libraries: ``hybridge/kernels`` in the user's cache."""
    return compiling.cache_folder("kernels")


def sources() -> list[Path]:
    """Return the kernels' C++ files, which are compiled for each instruction set."""
    return sorted(FOLDER.glob("*.cpp"))


def headers() -> list[Path]:
    """Return all headers."""
    return sorted(FOLDER.rglob("*.h"))


def dispatch_sources() -> list[Path]:
    """Return the C++ files that choose between instruction sets, which are compiled for any processor."""
    return sorted(FOLDER.glob("dispatch/*.cpp"))


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

    def run_all(commands: Sequence[Sequence[str]]) -> None:
        if errors := compiling.compile_all(commands, library.parent):
            raise KernelsError(f"the kernels do not compile {errors}")

    command = [_compiler(), *FLAGS, *compiling.include_flags()]
    # ExecuTorch's headers take longer than what the kernels do with them: they are read once for each instruction set.
    headers = {each: str(library.with_name(f"{each.name}.h")) for each in instruction_sets()}
    run_all([[*command, *each.flags, *_precompile(made)] for each, made in headers.items()])
    units = [[*instruction_sets()[0].flags, str(source)] for source in dispatch_sources()]
    units += [[*each.flags, "-include", made, str(source)] for each, made in headers.items() for source in sources()]
    objects = [str(library.with_name(f"{number}.o")) for number in range(len(units))]
    run_all([[*command, *unit, "-c", "-o", made] for unit, made in zip(units, objects, strict=True)])
    run_all([[_compiler(), "-shared", *objects, "-o", str(library), *compiling.plugin_flags()]])


def _compiler() -> str:
    chosen = compiler()
    if chosen is None:
        raise KernelsError(
            "hybridge's kernels are compiled at first use, but there is no C++ compiler here: install g++ or clang++, "
            "or set CXX. Artifacts that were exported with --kernels llm run without one."
        )
    return chosen


def _precompile(header: str) -> list[str]:
    return ["-x", "c++-header", str(FOLDER / "kernel.h"), "-o", f"{header}.gch"]


@functools.cache
def _key() -> str:
    return compiling.key([*sources(), *dispatch_sources(), *headers(), TABLE], compiler(), FLAGS)
