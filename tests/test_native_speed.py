"""scripts/native-speed: texts of the two sessions that differ are seen; the sessions themselves are test_native's."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))

import native_speed

pytestmark = pytest.mark.thorough  # of a campaign script

SCRIPT = Path(native_speed.__file__)


def way(python: Sequence[int], cpp: Sequence[int]) -> native_speed.Way:
    return cast("Any", SimpleNamespace(name="lookup", python=lambda *_: [*python], cpp=lambda *_: [*cpp]))


@pytest.mark.parametrize(("cpp", "code", "differing"), [([1, 2, 3], 0, 0), ([1, 2, 4], 1, 2), ([1, 2], 1, 2)])
def test_texts_that_differ_are_counted(cpp: list[int], code: int, differing: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert native_speed.report([way([1, 2, 3], cpp)], [[7], [8]], 3) == code
    row = capsys.readouterr().out.splitlines()[-1]
    assert row.startswith("| lookup | ")
    assert row.endswith(f" | {differing} |")


@pytest.mark.parametrize("options", [["--prompts", "0"], ["--tokens", "x"], ["--threads", "4096"]], ids=" ".join)
def test_wrong_usage(options: list[str]) -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), *options], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
