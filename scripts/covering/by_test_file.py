"""A plugin of pytest that says for each line which test files reach it, also in the processes that they start.

How long each file takes goes into ``seconds.json`` beside the data.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import coverage
import pytest

SECONDS: Counter[str] = Counter()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> None:
    """Count what follows for the file of ``item``."""
    name = item.path.name
    os.environ["HYBRIDGE_COVERAGE_TEST"] = name
    measured = coverage.Coverage.current()
    if measured is not None:
        measured.switch_context(name)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Count the time of a test, its fixtures included. With several processes the first one is told of all tests."""
    SECONDS[Path(report.location[0]).name] += report.duration


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Keep what was measured, and write the times down beside those of earlier runs."""
    if (measured := coverage.Coverage.current()) is not None:
        measured.save()  # a process of several may be ended without a word
    if "PYTEST_XDIST_WORKER" not in os.environ:
        path = Path(os.environ["HYBRIDGE_COVERAGE"]).parents[1] / "seconds.json"
        before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        path.write_text(json.dumps({**before, **SECONDS}))
