"""Play random operations on real artifacts until the time is up, and hold all that they give against the eager model.

Each subject is a family, a kernel set and a precision (subjects.py). Artifacts are kept in ``.soak/`` as long as the code is
the same.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from campaigns import ROOT, campaign
from campaigns.soak.program import Round
from campaigns.soak.subjects import SUBJECTS


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
    """The rounds that were played."""

    def __init__(self) -> None:
        self.subjects: dict[str, Totals] = {}

    def add(self, subject: str, played: Round) -> None:
        """Count a round."""
        self.subjects.setdefault(subject, Totals()).add(played)

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


def _line(name: str, totals: Totals) -> str:
    refused = sum(count for operation, count in totals.operations.items() if operation.endswith("refused"))
    return (
        f"| {name} | {totals.rounds:,} | {totals.operations.total():,} | {refused:,} | {totals.compared:,} | "
        f"{100 * totals.worst:.1f} % | {totals.ties} | {len(totals.failures)} |"
    )


err = Console(stderr=True)


def main(
    subjects: Annotated[list[str] | None, typer.Argument(help="Beginnings of subjects' names; all if left out.")] = None,
    minutes: Annotated[float, typer.Option(min=0, help="How long, exports included.")] = 10,
    operations: Annotated[int, typer.Option(min=0, help="Stop once this many were played; 0: when the time is up.")] = 0,
    seed: Annotated[int, typer.Option(help="What the random operations are made of.")] = 0,
    turn: Annotated[float, typer.Option(min=0, help="Seconds of a subject before the next has its turn.")] = 30,
    only_round: Annotated[int | None, typer.Option("--round", help="Play this one again, and no other.")] = None,
    work: Annotated[Path, typer.Option(help="For artifacts.")] = ROOT / ".soak",
) -> None:
    """Play random operations against the eager model; exit code 1 if any result was wrong."""
    names = [name for name in SUBJECTS if not subjects or name.startswith(tuple(subjects))]
    if unknown := [each for each in subjects or [] if not any(name.startswith(each) for name in SUBJECTS)]:
        err.print(f"there is no subject {unknown[0]!r}; there are: {', '.join(SUBJECTS)}", highlight=False)
        raise typer.Exit(2)
    folder = work / campaign.fingerprint()
    folder.mkdir(parents=True, exist_ok=True)
    journal, end = Journal(), time.monotonic() + 60 * minutes
    for name in turns(names, once=only_round is not None):
        if time.monotonic() > end or 0 < operations <= journal.operations:
            break
        seconds = 0.0 if only_round is not None else min(turn, end - time.monotonic())
        first = journal.next(name) if only_round is None else only_round
        for played in play(name, folder, seed, first, seconds):
            journal.add(name, played)
            if played.error:
                err.print(f"[red]{name}[/], --seed {seed} --round {played.number}: {played.error}", highlight=False)
        err.print(f"{name}: {journal.subjects[name].operations.total():,} operations", highlight=False)
    print(journal.table())
    raise typer.Exit(1 if any(each.failures for each in journal.subjects.values()) else 0)


def turns(names: list[str], *, once: bool) -> Iterator[str]:
    """Yield the names in turns, for ever unless ``once``."""
    yield from names
    while not once:
        yield from names


def play(name: str, folder: Path, seed: int, first: int, seconds: float) -> Iterator[Round]:
    """Yield the rounds that a process of its own plays; the one in which it ends by itself counts as failed."""
    command = [sys.executable, "-m", "campaigns.soak.worker", name, str(folder), str(seed), str(first), str(seconds)]
    threads = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    number = first
    with tempfile.TemporaryFile() as errors:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=os.environ | threads) as process:
            assert process.stdout is not None
            for line in process.stdout:
                said = json.loads(line)
                number = said.get("begins", number)
                if "number" in said:
                    yield Round(**said | {"operations": Counter(said["operations"])})
        if process.returncode:
            errors.seek(0)
            words = errors.read().decode(errors="replace").strip()[-2000:]
            yield Round(number, error=f"the process ended with {process.returncode}: {words}")


if __name__ == "__main__":
    campaign.run("soak", main)
