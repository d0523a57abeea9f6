"""What was measured, as a table of rooms."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import coverage

FOLDERS = ("cache", "runtime", "export")


@dataclass
class Reached:
    """Counts of a folder: lines and branches, those that were reached."""

    all_lines: int = 0
    reached_lines: int = 0
    all_branches: int = 0
    reached_branches: int = 0

    @property
    def lines(self) -> float:
        """Return the share of lines that were reached."""
        return self.reached_lines / self.all_lines if self.all_lines else 1.0

    @property
    def branches(self) -> float:
        """Return the share of branches that were taken."""
        return self.reached_branches / self.all_branches if self.all_branches else 1.0

    def add(self, measured: coverage.Coverage, module: Path) -> None:
        """Count a module."""
        numbers = measured._analyze(str(module)).numbers  # what `coverage report` prints; the public analysis has no branches
        self.all_lines += numbers.n_statements
        self.reached_lines += numbers.n_executed
        self.all_branches += numbers.n_branches
        self.reached_branches += numbers.n_executed_branches

    @classmethod
    def rooms(cls, measured: coverage.Coverage, root: Path) -> dict[str, Reached]:
        """Return what was reached of each folder of the product."""
        found = {name: cls() for name in FOLDERS}
        for name, counts in found.items():
            for module in sorted((root.resolve() / name).rglob("*.py")):
                counts.add(measured, module)
        return found


def table(rooms: dict[str, Reached]) -> str:
    """Return a line for each folder."""
    head = "| folder | lines | reached | branches | taken |\n|---|---|---|---|---|"
    counts = zip(*(vars(each).values() for each in rooms.values()), strict=True)
    every = {**rooms, "all": Reached(*map(sum, counts))}
    lines = [
        f"| {name} | {each.all_lines:,} | {each.lines:.1%} | {each.all_branches:,} | {each.branches:.1%} |"
        for name, each in every.items()
    ]
    return "\n".join([head, *lines])
