"""``scripts/trust broken-features``: each line that it breaks is there; one that moved would be counted as noticed."""

from __future__ import annotations

import pytest
from campaigns.broken_features import FEATURES, ROOT, Break, find_tests


@pytest.mark.parametrize("each", FEATURES, ids=lambda each: each.feature)
def test_a_feature_is_where_it_is_broken(each: Break) -> None:
    assert (ROOT / each.file).read_text(encoding="utf-8").count(each.before) == 1
    assert each.before != each.after
    for name in each.tests.split():
        find_tests(ROOT, name)
