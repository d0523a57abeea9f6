"""The innermost loops of 4-bit products keep to registers: an edit or a compiler that brings spills back is seen here."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec

import pytest
from campaigns import ROOT


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ziglang") is None, reason="needs clang: scripts/setup, which installs ziglang")
def test_products_reach_their_targets() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "campaigns.instructions"], capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = re.findall(r"^\| (\w+) \| clang \| (\d+) \| \d+ \| 0 \| [\d.]+ \| \d+ \|$", done.stdout, flags=re.MULTILINE)
    assert {name for name, _ in rows} == {"avx2", "avxvnni", "avx512vnni", "dotprod", "i8mm"}
    assert ("i8mm", "8") in rows


def test_vectors_are_made_of_registers() -> None:
    """g++ keeps vector types that are wider than a register in memory: with AVX2 attention took twelve times as long."""
    sources = (ROOT / "runtime" / "kernels").glob("*.[ch]*")
    assert {path.name for path in sources if "vector_size" in path.read_text(encoding="utf-8")} == {"lanes.h"}
