"""Tests of the campaigns, which only ``scripts/test --all`` runs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from checkout import HELPERS

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the processes that a campaign starts import what it imports, as ``scripts/trust`` does."""
    paths = [ROOT / "scripts", *HELPERS, ROOT / "examples", os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, map(str, paths))))
