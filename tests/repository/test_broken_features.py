"""``scripts/trust broken-features``: each line that it breaks is there; one that moved would be counted as noticed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from campaigns.broken_features import FEATURES, ROOT, Break, fails, find_tests


@pytest.mark.parametrize("each", FEATURES, ids=lambda each: each.feature)
def test_a_feature_is_where_it_is_broken(each: Break) -> None:
    assert (ROOT / each.file).read_text(encoding="utf-8").count(each.before) == 1
    assert each.before != each.after
    for name in each.tests.split():
        find_tests(ROOT, name)


@pytest.mark.parametrize(("code", "noticed"), [(0, False), (1, True), (pytest.ExitCode.NO_TESTS_COLLECTED, False)])
def test_a_file_that_runs_nothing_by_default_notices_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, noticed: bool
) -> None:
    """A file whose tests were all left to --all was counted as one that failed."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_some.py").touch()
    (tmp_path / "pytest").write_text(f"#!/bin/sh\nexit {int(code)}\n")
    (tmp_path / "pytest").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "pytest"))
    assert fails(tmp_path, "some") == noticed
