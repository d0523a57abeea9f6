"""Work that is done once for a whole run of the tests, however many processes run them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """A folder that ``make`` has filled: by the process that asks first, while the others wait for it; or by an earlier run.

    HYBRIDGE_TESTS_MADE may name a folder of an earlier run's work, which ``scripts/mutants`` keeps.
    """
    made = Path(os.environ.get("HYBRIDGE_TESTS_MADE", os.devnull)) / name
    if made.with_name(f"{name}.done").exists():
        return made
    base = factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder, done = shared / name, shared / f"{name}.done"
    with FileLock(shared / f"{name}.lock"):
        if not done.exists():
            folder.mkdir()
            make(folder)
            done.touch()
    return folder
