"""Compile ``replay.cpp`` against the installed ExecuTorch: once for each version of it, of the compiler and of our sources."""

from __future__ import annotations

import functools
import sysconfig
from pathlib import Path

from hybridge.cache.errors import NativeError
from hybridge.runtime.kernels import compiling
from hybridge.runtime.pinned import MACROS, registry_library

FOLDER = Path(__file__).parent
FLAGS = ("-std=c++20", "-O2", "-Wall", "-Wextra", "-Werror", *MACROS)


def build() -> Path:
    """Build the command, or find it in the cache. Raises NativeError."""
    if not path().exists():
        _compile(path())
    return path()


def path() -> Path:
    """Return where the command of these sources is or would be."""
    return compiling.cache_folder("native") / _key() / "hybridge_replay"


@functools.cache
def _key() -> str:
    return compiling.key([FOLDER / "replay.cpp", *sorted(FOLDER.glob("hybridge/*.h"))], compiling.compiler(), FLAGS)


def _compile(command: Path) -> None:
    chosen = compiling.compiler()
    if chosen is None:
        raise NativeError(
            "the native harness is compiled at first use, but there is no C++ compiler here: install g++ or clang++, "
            "or set CXX."
        )
    with compiling.appearing(command) as built:
        sources = [f"-I{FOLDER}", str(FOLDER / "replay.cpp")]
        if errors := compiling.errors_of(
            [chosen, *FLAGS, *compiling.include_flags(), *sources, "-o", str(built), *compiling.link_flags(), *_links()]
        ):
            raise NativeError(f"the native harness does not compile {errors}")


def _links() -> list[str]:
    """Return what the wheel's runtime needs outside of a Python process: Python itself, and the library with its registries."""
    if not sysconfig.get_config_var("Py_ENABLE_SHARED"):
        raise NativeError(
            "ExecuTorch's wheel is linked against libpython, and this Python has none; use one that was built with "
            "--enable-shared, such as a distribution's."
        )
    python = Path(sysconfig.get_config_var("LIBDIR"))
    return [
        *compiling.linked(registry_library()),
        *(f"-L{python}", f"-l:{sysconfig.get_config_var('LDLIBRARY')}", f"-Wl,-rpath,{python}"),
        *("-Wl,--allow-shlib-undefined", "-ldl"),
    ]
