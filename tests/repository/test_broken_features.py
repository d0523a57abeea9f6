"""``scripts/trust broken-features``: each line that it breaks is there; one that moved would be counted as noticed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from campaigns.broken_features import FEATURES, ROOT, Break, find_tests, run, tried


@pytest.mark.parametrize("each", FEATURES, ids=lambda each: each.feature)
def test_a_feature_is_where_it_is_broken(each: Break) -> None:
    assert (ROOT / each.file).read_text(encoding="utf-8").count(each.before) == 1
    assert each.before != each.after
    for name in each.tests.split():
        find_tests(ROOT, name)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of a checkout with one feature and the files of its tests."""
    copy, each = tmp_path / "copy", FEATURES[0]
    (copy / each.file).parent.mkdir(parents=True)
    (copy / "tests").mkdir()
    for name in each.tests.split():
        (copy / "tests" / f"test_{name}.py").touch()
    return copy


def let_pytest(monkeypatch: pytest.MonkeyPatch, folder: Path, does: str) -> None:
    (folder / "pytest").write_text(f"#!/bin/sh\n{does}\n")
    (folder / "pytest").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(folder / "pytest"))


@pytest.mark.parametrize(
    ("does", "says", "is_noticed"),
    [
        ("exit 0", "NOT NOTICED", False),
        ("exit 5", "NOT NOTICED", False),  # a file whose tests are all left to --all
        ("exit 1", "test_gated_delta_rule FAILS WITHOUT IT", False),
        ('case "$*" in *--last-failed*) exit 0;; *) exit 1;; esac', "noticed by test_gated_delta_rule", True),
    ],
)
def test_a_break_is_noticed_by_a_test_that_passes_without_it(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, does: str, says: str, is_noticed: bool
) -> None:
    let_pytest(monkeypatch, tmp_path, does)
    assert tried(copy, FEATURES[0]) == (says, is_noticed)
    assert (copy / FEATURES[0].file).read_bytes() == (ROOT / FEATURES[0].file).read_bytes()


@pytest.mark.parametrize("code", [2, 3, 4])
def test_a_run_that_could_not_begin_is_no_verdict(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """pytest's own errors were counted as failed tests."""
    let_pytest(monkeypatch, tmp_path, f"echo no such option; exit {code}")
    with pytest.raises(RuntimeError, match=f"ended with {code} in test_families.py:\nno such option"):
        run(copy, "families")
