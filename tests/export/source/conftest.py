"""A checkpoint to be spoilt."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest


@pytest.fixture
def folder(checkpoint: Path, tmp_path: Path) -> Path:
    """A copy of a good checkpoint."""
    return Path(shutil.copytree(checkpoint, tmp_path / "checkpoint"))
