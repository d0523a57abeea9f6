"""The clients in C and C++, compiled against the library of each ExecuTorch that they call."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from campaigns.clients.client import ClientError
from hybridge.runtime.core.library import SOURCES
from hybridge.runtime.kernels import compiling, library
from hybridge.runtime.pinned import MACROS, OPERATORS_AND_BACKENDS

STRICT = ("-O1", "-Wall", "-Wextra", "-Wpedantic", "-Werror")
ASK = """
import json, sysconfig
print(json.dumps([sysconfig.get_path("platlib"), *map(sysconfig.get_config_var, ("Py_ENABLE_SHARED", "LIBDIR", "LDLIBRARY"))]))
"""


@dataclass(frozen=True)
class Wheel:
    """An installed ExecuTorch, as a C++ program links to its LLM runner."""

    runner: Path
    operators: Path
    libpython: Path

    @classmethod
    def of(cls, python: Path) -> Wheel:
        """Find the files of an environment. Raises ClientError where the wheel has no runner, or Python is no library."""
        done = subprocess.run([python, "-c", ASK], capture_output=True, text=True, check=True)
        packages, shared, folder, name = json.loads(done.stdout)
        if not shared:
            raise ClientError("the wheel's library needs libpython, and this Python was built without --enable-shared")
        llm = Path(packages, "executorch/extension/llm")
        found = [*llm.glob("runner/_llm_runner.*.so"), *llm.glob("custom_ops/libcustom_ops_aot_lib.*")]
        if len(found) != 2:
            raise ClientError(f"the wheel has no LLM runner with its operators in {llm}")
        return cls(*found, Path(folder, name))


def c_api(source: Path, folder: Path) -> Path:
    """Compile a C11 program over ``hybridge.h``, our kernels linked in; returns it."""
    ours = ["-std=c++20", *STRICT, *MACROS, f"-I{SOURCES}", *compiling.include_flags(), "-c", SOURCES / "c_api.cpp"]
    compile_with(cpp(), *ours, "-o", folder / "library.o")
    compile_with("gcc", "-std=c11", *STRICT, f"-I{SOURCES}", "-c", source, "-o", folder / "program.o")
    kernels = library.build()
    links = ["-Wl,--no-as-needed", *compiling.link_flags(*OPERATORS_AND_BACKENDS), kernels, f"-Wl,-rpath,{kernels.parent}"]
    return compile_with(cpp(), folder / "program.o", folder / "library.o", "-o", folder / "program", *links)


def text_llm_runner(source: Path, folder: Path, wheel: Wheel) -> Path:
    """Compile the C++ program over the wheel's own TextLLMRunner; returns it."""
    libraries = [wheel.runner, wheel.libpython]
    rpaths = [f"-Wl,-rpath,{path.parent}" for path in libraries]
    # The wheel's Python libraries leave symbols to each other, which the loader finds and the linker does not.
    links = ["-Wl,--no-as-needed", *libraries, *rpaths, "-Wl,--allow-shlib-undefined", "-ldl"]
    return compile_with(cpp(), "-std=c++20", *STRICT, source, "-o", folder / "program", *links)


def cpp() -> str:
    """Return the C++ compiler. Raises ClientError."""
    if (found := compiling.compiler()) is None:
        raise ClientError("there is no C++ compiler here: install g++ or clang++, or set CXX")
    return found


def compile_with(*command: object) -> Path:
    """Run a compiler; returns what follows ``-o``. Raises ClientError."""
    words: Sequence[str] = list(map(str, command))
    made = Path(words[words.index("-o") + 1])
    if errors := compiling.errors_of(words, made.parent):
        raise ClientError(f"it does not compile {errors[-300:]}")
    return made
