"""Our C++ in clang, without a warning, for the platforms that apps have; on this one what it makes is run."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path

import pytest
from checkout import CHECKOUT
from compiler_flags import MACROS, compile_all, include_flags, kernel_sources
from cross_compiled import has_zig, zig
from native_programs import app_links
from store import demo_folder

from hybridge.runtime.binding import library as core_library
from hybridge.runtime.binding.chat import Chat
from hybridge.runtime.binding.library import SOURCES
from hybridge.runtime.kernels import compiling, library

EXAMPLE = CHECKOUT / "examples/native/main.cpp"
APPS = [
    EXAMPLE,
    EXAMPLE.with_name("tools.cpp"),
    SOURCES / "c_api/chat.cpp",
    SOURCES / "engine/session.cpp",
    SOURCES / "pte/program.cpp",
]
# The statement expressions are in ExecuTorch's ET_UNWRAP and our HYBRIDGE_TRY.
STRICT = ("-std=c++20", "-Wall", "-Wextra", "-Werror", "-Wpedantic", "-Wno-gnu-statement-expression", *MACROS)
APP_FLAGS = (*STRICT, "-Wconversion", f"-I{SOURCES}")
KERNEL_FLAGS = (*STRICT, "-Wno-unused-parameter", "-Wno-sign-compare", "-Wno-psabi", f"-I{library.FOLDER}")
PROMPT = "how to read a file"
needs_zig = pytest.mark.skipif(not has_zig(), reason="needs clang: scripts/setup, which installs ziglang")


def compile_for(target: str, folder: Path) -> None:
    """The kernels include the same headers of ExecuTorch, which are read once."""
    clang = [*zig("c++", target), *include_flags()]
    headers, precompiled = folder / "headers.h", folder / "headers.pch"
    headers.write_text('#include "kernel.h"\n#include <cmath>\n#include <vector>\n')
    compile_all([[*clang, *KERNEL_FLAGS, "-x", "c++-header", headers, "-o", precompiled]], folder)
    kernels = [(*KERNEL_FLAGS, "-include-pch", precompiled, "-c", source) for source in kernel_sources()]
    apps = [(*APP_FLAGS, "-c", source) for source in APPS]
    compile_all([[*clang, *flags, "-o", folder / f"{flags[-1].name}.o"] for flags in [*apps, *kernels]], folder)


@pytest.mark.thorough
@needs_zig
@pytest.mark.slow
@pytest.mark.parametrize("target", ["x86_64-linux-gnu", "aarch64-linux-gnu", "aarch64-macos"])
def test_clang_has_no_warning(target: str, tmp_path: Path) -> None:
    """What passed once is not compiled again until something changes."""
    headers = [path for folder in ("hybridge", "engine", "c_api", "text") for path in sorted((SOURCES / folder).glob("*.h*"))]
    files = [*APPS, *kernel_sources(), *headers, *sorted(library.FOLDER.glob("*.h"))]
    passed = compiling.cache_folder("clang") / f"{compiling.key([*files, Path(__file__)])}-{target}" / "passed"

    def compile_once(made: Path) -> None:
        compile_for(target, tmp_path)
        made.touch()

    compiling.built(passed, compile_once)


def system_clang() -> list[str]:
    """Clang over this machine's C and C++ libraries, which ExecuTorch's wheel was compiled with as well."""
    import ziglang

    folder = Path(str(ziglang.__file__)).parent
    return [str(folder / "zig"), "clang", "--target=x86_64-linux-gnu", "--driver-mode=g++", f"-isystem{folder}/lib/include"]


@needs_zig
@pytest.mark.slow
@pytest.mark.skipif((platform.system(), platform.machine()) != ("Linux", "x86_64"), reason="for x86-64 Linux")
def test_the_example_runs_as_clang_makes_it(tmp_path: Path) -> None:
    made, program, demo = tmp_path / "main.o", tmp_path / "talk", demo_folder() / "hybridge-demo"
    compile_all([[*system_clang(), *include_flags(), *APP_FLAGS, "-O1", "-c", EXAMPLE, "-o", made]], made.parent)
    core = core_library.build()
    compile_all([[compiling.compiler(), made, "-o", program, core, f"-Wl,-rpath,{core.parent}", *app_links()]], made.parent)
    said = subprocess.run([program, demo], input=PROMPT, capture_output=True, encoding="utf-8", check=True, timeout=120).stdout
    pieces: list[str] = []
    Chat.open(demo).send(PROMPT, lambda content, _: pieces.append(content))
    assert said == "".join(pieces) + "\n"
