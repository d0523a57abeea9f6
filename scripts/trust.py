"""Run everything that attacks hybridge, and print one table at the end; exit code 1 if anything was wrong.

Each part is a script of its own, whose output is in ``.trust/``. The long run takes days; ``--quick`` is a slice of each in
about ten minutes.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

ROOT = Path(__file__).parent.parent
err = Console(stderr=True)


@dataclass(frozen=True)
class Part:
    """A script and its arguments in the long run, and in the quick one: None where it is left out."""

    script: str
    long: str
    quick: str | None

    def command(self, quick: bool) -> list[str]:
        """Return what runs it."""
        words = (self.quick or "") if quick else self.long
        start = ["-m", "pytest", "-q", "--numprocesses=0"] if self.script == "pytest" else [str(ROOT / "scripts" / self.script)]
        return [sys.executable, *start, *words.split()]


PARTS: Mapping[str, Part] = {
    "operations": Part("soak.py", "--minutes 1440 --operations 1000000", "--minutes 2 --turn 10"),
    "hostile input": Part("fuzz.py", "--count 2000", "--minutes 2"),
    "faults while writing": Part("faults.py", "", "--kills 8 --exports 1 --disks 4 --lines 60"),
    "long texts": Part("long_texts.py", "", "lfm2 --tokens 1500 --repeated 500"),
    "processes": Part("processes.py", "", "--loads 40 --sessions 20 --threads 4 --children 4 --calls 200"),
    "interrupts and the pool": Part(
        "pytest", "tests/test_interrupts.py tests/test_pool.py", "tests/test_interrupts.py tests/test_pool.py -k prefill"
    ),
    "coverage": Part("test_coverage.py", "", None),
    "mutants": Part("mutants.py", "--count 400", None),
}


@dataclass(frozen=True)
class Outcome:
    """How a part ended: its exit code, and the last line that it said."""

    code: int
    minutes: float
    last: str


def arguments() -> argparse.Namespace:
    """Parse the arguments; exits with 2 for wrong ones."""
    parser = argparse.ArgumentParser(prog="scripts/trust", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a slice of each, in about ten minutes")
    parser.add_argument("--only", choices=PARTS, action="append", help="a part; all without this")
    parser.add_argument("--logs", type=Path, default=ROOT / ".trust", help="where the parts' output goes")
    return parser.parse_args()


def main(parts: Mapping[str, Part] = PARTS) -> int:
    """Run the parts one after another; one that is wrong does not keep the others from running."""
    options = arguments()
    options.logs.mkdir(parents=True, exist_ok=True)
    chosen = {name: part for name, part in parts.items() if name in (options.only or parts)}
    if options.quick:
        chosen = {name: part for name, part in chosen.items() if part.quick is not None}
    outcomes = {name: run(name, part.command(options.quick), options.logs) for name, part in chosen.items()}
    print(table(outcomes, options.logs))
    return 1 if not outcomes or any(each.code for each in outcomes.values()) else 0


def run(name: str, command: list[str], logs: Path) -> Outcome:
    """Run a part, with its output in a file."""
    start, log = time.monotonic(), log_of(name, logs)
    with log.open("w", encoding="utf-8") as file:
        code = subprocess.run(command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, check=False).returncode
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    outcome = Outcome(code, (time.monotonic() - start) / 60, lines[-1].strip() if lines else "")
    err.print(f"{name}: {'wrong' if code else 'fine'} after {outcome.minutes:.1f} minutes", highlight=False)
    return outcome


def log_of(name: str, logs: Path) -> Path:
    """Return where the output of a part is."""
    return logs / f"{name.replace(' ', '-')}.log"


def table(outcomes: Mapping[str, Outcome], logs: Path) -> str:
    """Return a line for each part, and where to read on for those that are wrong."""
    head = "| part | result | minutes | its last line |\n|---|---|---|---|"
    lines = [
        f"| {name} | {f'WRONG, exit code {each.code}' if each.code else 'fine'} | {each.minutes:.1f} | {cell(each.last)} |"
        for name, each in outcomes.items()
    ]
    wrong = [f"{name}: see {log_of(name, logs)}" for name, each in outcomes.items() if each.code]
    return "\n".join([head, *lines, *wrong])


def cell(line: str) -> str:
    """Return a line that fits into a cell: of a table only what its cells say."""
    return " ".join(line.strip("|").replace("|", ",").split())[:100]


if __name__ == "__main__":
    sys.exit(main())
