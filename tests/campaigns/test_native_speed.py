"""scripts/trust native-speed: texts of engines that differ are seen."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import pytest
from campaigns import native_speed


def way(**found: Sequence[int]) -> native_speed.Way:
    return native_speed.Way("lookup", {name: lambda *_, new=new: ([*new], 0.5) for name, new in found.items()})


@pytest.mark.parametrize(
    ("found", "code", "differing"),
    [
        ({"C++": [1, 2]}, 0, 0),
        ({"C++": [1, 3]}, 1, 2),
        ({"C++": [1]}, 1, 2),
    ],
    ids=str,
)
def test_texts_that_differ_are_counted(
    found: dict[str, list[int]], code: int, differing: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert native_speed.report([way(Python=[1, 2, 3], **found)], [[7], [8]], 3) == code
    row = capsys.readouterr().out.splitlines()[-1]
    assert row.startswith("| lookup | 6 | ")
    assert row.endswith(f" | {differing} |")


@pytest.mark.parametrize("options", [["--prompts", "0"], ["--tokens", "x"], ["--threads", "4096"]], ids=" ".join)
def test_wrong_usage(options: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "campaigns.native_speed", *options], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
