"""The first page's figures are those of the benchmarks, and the comparison says yes, or no and why, in each row.

What it says yes to is named by a command, an option or a page, which tests/repository/test_docs.py looks for.
"""

import re

from checkout import CHECKOUT
from documenting.results import drawing, results

DOCS = CHECKOUT / "docs"


def test_the_chart_shows_the_figures_of_the_benchmarks() -> None:
    found = results()
    steps, server = (
        ["decode, tokens/s", "prefill of 512, tokens/s", "verify of 8, ms"],
        ["memory, MB", "first token after 470, s"],
    )
    assert [each.what for each in found] == [*steps, *steps, *server]
    benchmarks = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    assert all(f"| {each.ours} | {each.theirs} | {each.ratio}× |" in benchmarks for each in found)
    assert (DOCS / "results.svg").read_text(encoding="utf-8") == drawing(found), "run scripts/documenting/results.py"


def test_each_row_of_the_comparison_says_yes_or_why_not() -> None:
    rows = re.findall(
        r"^\| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", (DOCS / "comparison.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    answers = {name: ours for name, ours, _ in rows}
    assert len(answers) > 15
    assert [name for name, ours in answers.items() if not re.match(r"yes\b|no: \w+|compiled|staged", ours)] == []
