"""The kernels' threads: every piece runs once, whoever asks at the same time; no data races; a child of a fork has its own."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from hybridge.runtime import pinned
from hybridge.runtime.kernels import compiling, library

SOURCES = (Path(__file__).parent / "native" / "pool.cpp", library.FOLDER / "dispatch" / "pool.cpp")
STRICT = ("-std=c++20", "-Wall", "-Wextra", "-Werror", "-pthread", "-g")


@pytest.mark.parametrize(
    ("flags", "arguments"),
    [(("-O2",), ("fork",)), (("-O1", "-fsanitize=thread"), ()), (("-O1", "-fsanitize=address,undefined"), ("fork",))],
    ids=["plain", "threads", "addresses"],
)
@pytest.mark.slow
def test_every_piece_runs_once(flags: tuple[str, ...], arguments: tuple[str, ...], tmp_path: Path) -> None:
    program = tmp_path / "pool"
    words = [compiling.compiler() or "g++", *STRICT, *flags, *pinned.MACROS, f"-I{library.FOLDER}", *compiling.include_flags()]
    subprocess.run([*words, *SOURCES, "-o", program], check=True)
    done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr[-3000:]
