"""Programs of ``scripts/trust fuzz`` compile: only ``scripts/test --all`` runs them."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from campaigns.fuzz import kernels, tokenizers

from hybridge.runtime.binding import library
from hybridge.runtime.kernels import compiling

FOLDER = Path(tokenizers.__file__).parent
DRIVERS: Mapping[str, Sequence[str]] = {
    "kernels": kernels.FLAGS,
    "picture_files": (f"-I{library.SOURCES}",),
    "tokenizers": tokenizers.FLAGS,
}
"""The flags of each program, by the name of its file."""


@pytest.mark.parametrize("driver", DRIVERS)
def test_every_program_of_the_fuzzer_compiles(driver: str) -> None:
    """Three targets did not after a field was added, and nothing told."""
    command = [compiling.compiler() or "g++", "-std=c++20", *DRIVERS[driver], "-fsyntax-only", str(FOLDER / f"{driver}.cpp")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_no_program_of_the_fuzzer_is_left_out() -> None:
    assert sorted(DRIVERS) == sorted(path.stem for path in FOLDER.glob("*.cpp"))
