"""The C interface for apps from many threads, compiled under the thread sanitizer. The kernels' pool has tests of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from campaigns import ROOT
from hybridge.runtime import pinned
from hybridge.runtime.core.library import SOURCES
from hybridge.runtime.kernels import compiling, library

PROGRAM = ROOT / "tests" / "native" / "threads.cpp"
FLAGS = ("-std=c++20", "-O1", "-g", "-pthread", "-Wall", "-Wextra", "-Werror")
PROMPT = ("5", "6", "7", "8", "9", "5", "6", "7", "8", "9", "5", "6")
OPTIONS = "ignore_noninstrumented_modules=1 halt_on_error=1"
"""ExecuTorch is not compiled for the sanitizer, which cannot see how its threads wait for each other."""


def compiled(folder: Path, sanitizer: str) -> Path:
    """Return the program, with the interface and its headers under a sanitizer."""
    kernels = library.build()
    sources = [str(PROGRAM), str(SOURCES / "c_api.cpp"), f"-I{SOURCES}", *compiling.include_flags(), *pinned.MACROS]
    links = [*compiling.link_flags(*pinned.OPERATORS_AND_BACKENDS), str(kernels), f"-Wl,-rpath,{kernels.parent}"]
    words = [
        compiling.compiler() or "g++",
        *FLAGS,
        f"-fsanitize={sanitizer}",
        *sources,
        "-o",
        str(folder / "threads"),
        *links,
    ]
    subprocess.run(words, check=True)
    return folder / "threads"


def under_the_thread_sanitizer(artifact: Path, rounds: int) -> tuple[bool, str]:
    """Return whether it went well, and what was found."""
    with tempfile.TemporaryDirectory() as scratch:
        words = [str(compiled(Path(scratch), "thread")), str(artifact / "model.pte"), scratch, str(rounds), *PROMPT]
        environment = os.environ | {"TSAN_OPTIONS": OPTIONS}
        done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=1800, check=False)
    print(done.stderr[-4000:], end="", file=sys.stderr)
    return done.returncode == 0, done.stdout.strip() or f"ended with {done.returncode}"
