"""Flags for what tests compile without CMake: the kernels', out of their CMakeLists.txt, and the installed ExecuTorch's."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from hybridge.runtime.kernels import compiling, library
from hybridge.runtime.pinned import RUNTIME, THREADS, executorch, library_folder

LISTS = library.FOLDER / "CMakeLists.txt"
TABLE = library.FOLDER / "dispatch/instruction_sets.txt"
SAME = {"arm64": "aarch64", "amd64": "x86_64"}
MACROS = ("-DC10_USING_CUSTOM_GENERATED_MACROS", "-DET_EVENT_TRACER_ENABLED", "-DET_USE_THREADPOOL")
"""Those of the wheel's CMake package, by which its own libraries were compiled.

Without the first the headers include a file that the wheel lacks; without the others classes have another layout, and loops one
thread.
"""


def _words_of(command: str) -> list[str]:
    (words,) = re.findall(rf"^{command}\((.*?)\)", LISTS.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return str(words).split()


KERNEL_FLAGS = (
    "-std=c++20",
    *(word for word in _words_of("add_compile_options") if word != "-O3"),
    *(f"-D{word}" for word in _words_of("add_compile_definitions") if word == "NDEBUG"),
    *MACROS,
)
"""The kernels' own, but for optimization."""


def kernel_sources(folder: str = ".") -> list[Path]:
    """The C++ files that are compiled for each instruction set; of ``dispatch`` those that are compiled once."""
    return sorted((library.FOLDER / folder).glob("*.cpp"))


@dataclass(frozen=True)
class InstructionSet:
    """A name and the compiler's flags."""

    name: str
    flags: tuple[str, ...]

    @property
    def definition(self) -> str:
        return f"-DINSTRUCTION_SET={self.name}"


def instruction_sets(machine: str | None = None) -> list[InstructionSet]:
    """Those of a processor by its name (this one's if left out), a better one after a worse."""
    wanted = (machine or platform.machine()).lower()
    lines = [line.split() for line in TABLE.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    return [InstructionSet(name, tuple(flags)) for processor, name, *flags in lines if processor == SAME.get(wanted, wanted)]


def include_folders() -> list[Path]:
    """The folders of ExecuTorch's headers, and of the part of c10 that they include by its own name."""
    include = executorch() / "include"
    return [include, include / "executorch/runtime/core/portable_type/c10"]


def include_flags() -> list[str]:
    return [flag for folder in include_folders() for flag in ("-isystem", str(folder))]


def link_flags(*libraries: str) -> list[str]:
    """Link a program to ExecuTorch's runtime and more of its ``libraries``, all of them, and find them where they are."""
    keep = () if platform.system() == "Darwin" else ("-Wl,--no-as-needed",)
    names = [f"-l{name}" for name in (RUNTIME, THREADS, *libraries)]
    return [*keep, f"-L{library_folder()}", *names, f"-Wl,-rpath,{library_folder()}"]


def compile_all(commands: Iterable[Sequence[object]], folder: Path) -> None:
    """Run compilers side by side, one for each processor."""

    def run(command: Sequence[object]) -> None:
        errors = compiling.errors_of(list(map(str, command)), folder)
        assert errors is None, f"{command[0]}: {errors}"

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(run, commands))
