"""Compile ``replay.cpp`` against the installed ExecuTorch: once for each version of it, of the compiler and of our sources."""

from __future__ import annotations

import functools
import sysconfig
from collections.abc import Collection
from pathlib import Path

from hybridge.cache.errors import NativeError
from hybridge.runtime import pinned
from hybridge.runtime.kernels import compiling

FOLDER = Path(__file__).parent
FLAGS = ("-std=c++20", "-O2", "-Wall", "-Wextra", "-Werror", *pinned.MACROS)


def build() -> Path:
    """Build the command, or find it in the cache. Raises NativeError, and KernelsError for a cache that others may write."""
    if not compiling.is_built(path()):
        _compiler()
    return compiling.built(path(), _compile)


def path() -> Path:
    """Return where the command of these sources is or would be."""
    return compiling.cache_folder("native") / _key() / "hybridge_replay"


def cmake_prefix() -> str:
    """Return the value of ``CMAKE_PREFIX_PATH`` with which an app finds this library and the installed ExecuTorch."""
    return f"{FOLDER};{pinned.executorch()}"


@functools.cache
def _key() -> str:
    return compiling.key([FOLDER / "replay.cpp", *sorted(FOLDER.glob("hybridge/*.h"))], compiling.compiler(), FLAGS)


def _compile(command: Path) -> None:
    sources = [f"-I{FOLDER}", str(FOLDER / "replay.cpp")]
    links = [*compiling.link_flags(*pinned.OPERATORS_AND_BACKENDS), "-ldl"]
    words = [_compiler(), *FLAGS, *compiling.include_flags(), *sources, "-o", str(command), *links]
    if errors := compiling.errors_of(words, command.parent):
        raise NativeError(f"the native harness does not compile {errors}")


def _compiler() -> str:
    chosen = compiling.compiler()
    if chosen is None:
        raise NativeError(
            "the native harness is compiled at first use, but there is no C++ compiler here: install g++ or clang++, "
            "or set CXX."
        )
    return chosen


def operator_libraries(namespaces: Collection[str]) -> list[Path]:
    """Return what a process without Python loads for the stock operators of ``namespaces``, in this order.

    The wheel has the llama:: operators for Python alone, so libpython comes before them. Raises NativeError without one.
    """
    found = pinned.operator_libraries(namespaces, pinned.OPERATORS_WITHOUT_PYTHON)
    others = pinned.operator_libraries(set(namespaces) - set(pinned.OPERATORS_WITHOUT_PYTHON))
    return [*found, *([_libpython(), *others] if others else [])]


def _libpython() -> Path:
    if not sysconfig.get_config_var("Py_ENABLE_SHARED"):
        raise NativeError(
            "the operators of --kernels llm in ExecuTorch's wheel are linked against libpython, and this Python has none; "
            "use one that was built with --enable-shared, such as a distribution's, or export with --kernels hybridge."
        )
    return Path(sysconfig.get_config_var("LIBDIR"), sysconfig.get_config_var("LDLIBRARY"))
