"""A checkpoint to be damaged."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest


@pytest.fixture
def checkpoint_copy(checkpoint: Path, tmp_path: Path) -> Path:
    """A copy of a good checkpoint."""
    return Path(shutil.copytree(checkpoint, tmp_path / "checkpoint"))
