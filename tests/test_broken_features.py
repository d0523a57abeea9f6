"""scripts/broken-features breaks what is there: a feature whose code has moved would be counted as noticed, or stop the run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))
from broken_features import FEATURES, ROOT, Break


@pytest.mark.parametrize("each", FEATURES, ids=lambda each: each.feature)
def test_a_feature_is_where_it_is_broken(each: Break) -> None:
    assert (ROOT / each.file).read_text(encoding="utf-8").count(each.before) == 1
    assert each.before != each.after
    assert all((ROOT / "tests" / f"test_{name}.py").exists() for name in each.tests.split())
