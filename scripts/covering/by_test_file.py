"""A plugin of pytest that says for each line which test files reach it, also in the processes that they start."""

from __future__ import annotations

import os

import coverage
import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> None:
    """Count what follows for the file of ``item``."""
    name = item.path.name
    os.environ["HYBRIDGE_COVERAGE_TEST"] = name
    measured = coverage.Coverage.current()
    if measured is not None:
        measured.switch_context(name)
