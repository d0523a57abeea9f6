"""Which process of a run does what, if pytest-xdist has several."""

from __future__ import annotations

import pytest


def hands_out_tests(config: pytest.Config) -> bool:
    """Return whether this process runs no test, and collects none: it hands them to workers."""
    distributes = config.getoption("dist", "no") != "no" and config.getoption("tx", None)
    return bool(distributes) and not config.getoption("collectonly")
