"""The rounds that were played, one line of JSON each: an interrupted soak goes on behind the last."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from campaigns.soak.program import Round


@dataclass
class Totals:
    """All rounds of one subject."""

    rounds: int = 0
    next: int = 0
    operations: Counter[str] = field(default_factory=Counter)
    compared: int = 0
    worst: float = 0.0
    ties: int = 0
    failures: list[str] = field(default_factory=list)

    def add(self, played: Round) -> None:
        self.rounds, self.next = self.rounds + 1, max(self.next, played.number + 1)
        self.operations.update(played.operations)
        self.compared, self.worst = self.compared + played.compared, max(self.worst, played.worst)
        self.ties += played.ties
        if played.error:
            self.failures.append(f"round {played.number}: {played.error}")


class Journal:
    """The rounds of one seed by one code, in a file that keeps those of others as well."""

    def __init__(self, path: Path, *, seed: int, code: str) -> None:
        self.path, self.key = path, {"seed": seed, "code": code}
        self.subjects: dict[str, Totals] = {}
        for subject, played in self._read():
            self._count(subject, played)

    def add(self, subject: str, played: Round) -> None:
        """Count a round and write it down."""
        self._count(subject, played)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({**self.key, "subject": subject, "round": vars(played)}) + "\n")

    def next(self, subject: str) -> int:
        """Return the number of the first round that was not played."""
        return self.subjects[subject].next if subject in self.subjects else 0

    @property
    def operations(self) -> int:
        """Return the operations of all subjects."""
        return sum(each.operations.total() for each in self.subjects.values())

    def table(self) -> str:
        """Return a line for each subject, and the sum."""
        lines = [
            "| subject | rounds | operations | refused | compared | largest error, of what is tolerated | ties | failures |"
        ]
        lines.append("|---|---|---|---|---|---|---|---|")
        every = Totals()
        for name, each in sorted(self.subjects.items()):
            lines.append(_line(name, each))
            every.rounds, every.compared = every.rounds + each.rounds, every.compared + each.compared
            every.operations, every.worst = every.operations + each.operations, max(every.worst, each.worst)
            every.ties, every.failures = every.ties + each.ties, every.failures + each.failures
        return "\n".join([*lines, _line("**all**", every)])

    def _count(self, subject: str, played: Round) -> None:
        self.subjects.setdefault(subject, Totals()).add(played)

    def _read(self) -> Iterator[tuple[str, Round]]:
        if not self.path.exists():
            return
        for line in self.path.read_text(encoding="utf-8").splitlines():
            entry: dict[str, Any] = json.loads(line)
            if {name: entry[name] for name in self.key} == self.key:
                played = entry["round"]
                yield entry["subject"], Round(**played | {"operations": Counter(played["operations"])})


def _line(name: str, totals: Totals) -> str:
    refused = sum(count for operation, count in totals.operations.items() if operation.endswith("refused"))
    return (
        f"| {name} | {totals.rounds:,} | {totals.operations.total():,} | {refused:,} | {totals.compared:,} | "
        f"{100 * totals.worst:.1f} % | {totals.ties} | {len(totals.failures)} |"
    )
