"""The memory of this process, on Linux."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def anonymous_bytes() -> int:
    """Return the resident bytes that are of no file."""
    [line] = [each for each in Path("/proc/self/status").read_text().splitlines() if each.startswith("RssAnon")]
    return int(line.split()[1]) << 10
