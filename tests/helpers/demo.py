"""The artifacts that ``scripts/demo`` leaves behind, made once for all tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from once import once

SCRIPT = Path(sys.executable).parent / "hybridge"
SHOWN = "shown.txt"


def demo_folder(factory: pytest.TempPathFactory) -> Path:
    """A folder with hybridge-demo, hybridge-demo-draft, hybridge-demo-dspark, and what the command wrote to stdout.

    Change nothing in it.
    """
    return once(factory, "demo", _demo)


def _demo(folder: Path) -> None:
    done = subprocess.run(
        [SCRIPT, "demo", "--programs", "8"], cwd=folder, check=False, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr
    (folder / SHOWN).write_text(done.stdout, encoding="utf-8")
