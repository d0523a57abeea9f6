"""Print where a run of the tests spent its time, from the file that ``scripts/test --durations-file PATH`` writes.

Tables: seconds by kind of work (exports, compilations, other processes, properties, the rest), by test file and by fixture.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

MEASURED = Path(__file__).parents[1] / "tests" / "durations.json"


def report(content: dict[str, dict[str, dict[str, float]]], count: int) -> str:
    """Return the tables of a durations file, with at most ``count`` test files and fixtures."""
    others = dict(content["others"])
    del others["count"]
    kinds, files = Counter[str](others), defaultdict[str, Counter[str]](Counter)
    for test, spent in content["tests"].items():
        kinds.update(spent)
        files[test.partition("::")[0]].update(spent)
    names = [kind for kind, _ in kinds.most_common()]
    by_kind = [(kind, f"{kinds[kind]:.0f}", f"{kinds[kind] / kinds.total():.0%}") for kind in names]
    largest = sorted(files.items(), key=lambda each: -each[1].total())[:count]
    by_file = [(name, f"{each.total():.0f}", *(f"{each[kind]:.0f}" for kind in names)) for name, each in largest]
    by_fixture = [(name, f"{each:.0f}") for name, each in Counter(content["fixtures"]).most_common(count)]
    return "\n\n".join(
        (
            table(("kind of work", "seconds", "share"), [*by_kind, ("all", f"{kinds.total():.0f}", "")]),
            table(("test file", "seconds", *names), by_file),
            table(("fixture", "seconds"), by_fixture),
        )
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def main() -> None:
    """Parse the arguments and print the tables."""
    parser = argparse.ArgumentParser(prog="scripts/durations.py", description=__doc__)
    parser.add_argument("file", nargs="?", type=Path, default=MEASURED, help="default: tests/durations.json")
    parser.add_argument("--count", type=int, default=20, help="test files and fixtures (default: 20)")
    options = parser.parse_args()
    print(report(json.loads(options.file.read_text(encoding="utf-8")), options.count))


if __name__ == "__main__":
    main()
