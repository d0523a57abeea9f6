"""The kernels' threads: every piece runs once, whoever asks at the same time; no data races; a child of a fork has its own."""

from __future__ import annotations

import subprocess

import pytest
from native_programs import native_program


@pytest.mark.parametrize(("program", "arguments"), [("pool", ["fork"]), ("pool_threads", []), ("pool_addresses", ["fork"])])
@pytest.mark.slow
def test_every_piece_runs_once(program: str, arguments: list[str]) -> None:
    done = subprocess.run([native_program(program), *arguments], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr[-3000:]
