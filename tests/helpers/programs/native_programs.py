"""The C and C++ programs of ``tests/native``: one CMake project, whose build folder stays from run to run.

As a program, before a run's processes want them: build these, the kernels and the native core, with all cores.
"""

from __future__ import annotations

import functools
import hashlib
import os
import subprocess
import sys
from pathlib import Path

from checkout import CHECKOUT
from compiler_flags import link_flags
from filelock import FileLock
from store import FOLDER

from hybridge.runtime.binding import library
from hybridge.runtime.kernels import compiling
from hybridge.runtime.kernels import library as kernel_library
from hybridge.runtime.pinned import OPERATORS_AND_BACKENDS, executorch

PROJECT = CHECKOUT / "tests" / "native"


@functools.cache  # no source changes while tests run, and to ask the build takes a quarter of a second
def native_program(name: str) -> Path:
    """Return target ``name`` of tests/native/CMakeLists.txt, built where it is not as its sources are."""
    build = build_programs("--target", name)
    return next(path for path in (build / name, build / f"lib{name}.so") if path.exists())


def build_programs(*words: str) -> Path:
    """Build all programs, or those that ``cmake --build`` is asked for by ``words``; return the build's folder."""
    cmake = Path(sys.executable).with_name("cmake")
    options = {
        "HYBRIDGE": library.SOURCES.parent,
        "CORE": library.build(),
        "KERNELS": kernel_library.build(),
        "CMAKE_PREFIX_PATH": executorch(),
        "CMAKE_CXX_COMPILER": compiling.compiler() or "g++",
    }
    configure = [str(cmake), "-S", str(PROJECT), *(f"-D{name}={value}" for name, value in options.items())]
    of = f"{CHECKOUT} {options['CMAKE_CXX_COMPILER']}"  # CMake keeps nothing of a folder that had another compiler
    build = FOLDER / "native" / hashlib.sha256(of.encode()).hexdigest()[:16]
    build.mkdir(parents=True, exist_ok=True)
    configured = build / "configured"
    # Make looks for its target before it runs CMake again for a CMakeLists.txt that has changed.
    lists = [PROJECT / "CMakeLists.txt", library.SOURCES / "sources.cmake"]
    wanted = "\n".join([*configure, *(path.read_text(encoding="utf-8") for path in lists)])
    with FileLock(build.with_suffix(".lock")):
        if not configured.exists() or configured.read_text() != wanted:
            _run(*configure, "-G", "Unix Makefiles", "-B", str(build))
            configured.write_text(wanted)
        _run(str(cmake), "--build", str(build), *words)
    return build


def app_links() -> list[str]:
    """Return the linker's flags of an app: the wheel's libraries and our kernels. They come after the objects."""
    kernels = kernel_library.build()
    return [*link_flags(*OPERATORS_AND_BACKENDS), str(kernels), f"-Wl,-rpath,{kernels.parent}"]


def _run(*words: str) -> None:
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(words)}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}"


if __name__ == "__main__":
    library.build()
    build_programs("--parallel", str(os.cpu_count()))
