"""Change one thing of the product at a time, and look whether a test notices. Prints those that no test noticed.

A mutant is tried on the test files that reach its line, by the data of ``scripts/test-coverage``: first those of its module's
name, then the quickest. What was tried is kept, and not tried again as long as its module stays: an interrupted run goes on
where it was.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import coverage
from mutating.mutations import Mutant, mutants
from mutating.runner import Runner

ROOT = Path(__file__).parent.parent
MODULES = ("cache/**/*.py", "runtime/core/*.py", "runtime/files.py*.py")
WANTED = 0.85
"""Of the mutants, to be noticed."""


@dataclass(frozen=True)
class Tried:
    """What came of a mutant. by: the test file that noticed it; outcome: failed, no end, passed, or no test."""

    key: str
    module: str
    line: int
    change: str
    outcome: str
    by: str = ""
    seconds: float = 0.0


def arguments() -> argparse.Namespace:
    """Parse the arguments; exits with 2 for wrong ones."""
    parser = argparse.ArgumentParser(prog="scripts/mutants", description=__doc__)
    parser.add_argument("modules", nargs="*", help="beginnings of paths such as runtime/core; all if left out")
    parser.add_argument("--count", type=int, default=200, help="mutants, drawn from all (default: 200)")
    parser.add_argument("--minutes", type=float, default=600, help="how long at most (default: 600)")
    parser.add_argument("--seconds", type=float, default=120, help="tests of one mutant at most (default: 120)")
    parser.add_argument("--seed", type=int, default=0, help="of the draw (default: 0)")
    parser.add_argument("--data", type=Path, default=ROOT / ".coverage-data", help="what scripts/test-coverage left")
    parser.add_argument("--journal", type=Path, default=ROOT / ".mutants" / "journal.jsonl", help="what was tried")
    options = parser.parse_args()
    if min(options.count, options.minutes, options.seconds) <= 0:
        parser.error("--count, --minutes and --seconds are more than 0")
    if not (options.data / "data").exists():
        parser.error(f"{options.data} has no data: run scripts/test-coverage first")
    return options


def main() -> int:
    """Try the mutants; exit code 1 where fewer are noticed than should be."""
    options = arguments()
    tests = Tests(options.data, options.seconds)
    chosen = draw(options.modules, options.count, options.seed)
    options.journal.parent.mkdir(parents=True, exist_ok=True)
    before = {each.key: each for each in read(options.journal)}
    found, end = list[Tried](), time.monotonic() + 60 * options.minutes
    with tempfile.TemporaryDirectory(prefix="hybridge-mutants-") as scratch:
        runner = Runner(ROOT, Path(scratch) / "checkout")
        for module, mutant in chosen:
            if time.monotonic() > end:
                break
            source = (ROOT / module).read_text(encoding="utf-8")
            names = tests.that_reach(module, mutant)
            key = hashlib.sha256(repr([source, mutant, sorted(names), options.seconds]).encode()).hexdigest()[:16]
            tried = before.get(key) or attempt(runner, tests, key, module, mutant, source, names)
            found.append(tried)
            if key not in before:
                with options.journal.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(tried), ensure_ascii=False) + "\n")
            print(f"{len(found)}/{len(chosen)} {tried.outcome} {tried.by} {module}:{tried.line}", file=sys.stderr, flush=True)
    return summary(found)


class Tests:
    """Which test files reach a line, and how long each takes."""

    def __init__(self, folder: Path, limit: float) -> None:
        self.limit = limit
        """Seconds of one file, and of all files of one mutant, at most."""
        self._data = coverage.CoverageData(str(folder / "data"))
        self._data.read()
        self._seconds: dict[str, float] = json.loads((folder / "seconds.json").read_text(encoding="utf-8"))
        self._measured = {path.removeprefix(str(Path(json.loads((folder / "checkout.json").read_text())))).lstrip("/"): path
                          for path in self._data.measured_files()}  # fmt: skip

    def that_reach(self, module: str, mutant: Mutant) -> list[str]:
        """Return test files that end in time: those of the module's name, then the others, the quickest of each first.

        Those of the whole module where none is known to reach the line: it may have come later than the data.
        """
        by_line = self._data.contexts_by_lineno(self._measured.get(module, module))
        reached = {name for line in range(mutant.line, mutant.end_line + 1) for name in by_line.get(line, [])}
        names = reached or {name for each in by_line.values() for name in each}
        in_time = [name for name in names if (ROOT / "tests" / name).is_file() and self._seconds.get(name, 1e9) < self.limit]
        stem = Path(module).stem.strip("_")
        return sorted(in_time, key=lambda name: (stem not in name, self._seconds[name]))

    def took(self, name: str, seconds: float) -> None:
        """Let it be known how long a file takes alone: fixtures are shared where all are run."""
        self._seconds[name] = seconds


def draw(beginnings: list[str], count: int, seed: int) -> list[tuple[str, Mutant]]:
    """Return so many mutants of the modules, in an order of the seed."""
    paths = sorted({str(path.relative_to(ROOT)) for pattern in MODULES for path in ROOT.glob(pattern)})
    named = [path for path in paths if not beginnings or path.startswith(tuple(beginnings))]
    every = [(path, each) for path in named for each in mutants((ROOT / path).read_text(encoding="utf-8"))]
    return random.Random(seed).sample(every, min(count, len(every)))


def attempt(runner: Runner, tests: Tests, key: str, module: str, mutant: Mutant, source: str, names: list[str]) -> Tried:
    """Run the tests of a mutant until one notices it, or its time is up."""
    change = mutant.describe(source)
    spent = 0.0
    for name in names:
        if spent >= tests.limit:
            break
        start = time.monotonic()
        with runner.mutated(module, mutant.apply(source)):
            outcome = runner.outcome([name], tests.limit)
        seconds = time.monotonic() - start
        spent += seconds
        if outcome == "passed":
            tests.took(name, seconds)
        elif runner.passes(name, tests.limit):
            return Tried(key, module, mutant.line, change, outcome, name, spent)
    return Tried(key, module, mutant.line, change, "passed" if names else "no test", seconds=spent)


def read(journal: Path) -> Iterator[Tried]:
    """Yield what was tried before."""
    if journal.exists():
        for line in journal.read_text(encoding="utf-8").splitlines():
            yield Tried(**json.loads(line))


def summary(found: list[Tried]) -> int:
    """Print a table by folder, and every mutant that nothing noticed."""
    print("| folder | mutants | noticed | of them by a test that does not end | not noticed |\n|---|---|---|---|---|")
    for folder in [*sorted({str(Path(each.module).parent) for each in found}), "all"]:
        here = [each for each in found if folder in ("all", str(Path(each.module).parent))]
        noticed, endless = (sum(each.outcome in kinds for each in here) for kinds in (("failed", "no end"), ("no end",)))
        share = f"{noticed / len(here):.0%}" if here else "—"
        print(f"| {folder} | {len(here)} | {noticed} ({share}) | {endless} | {len(here) - noticed} |")
    left = [each for each in found if each.outcome not in ("failed", "no end")]
    for each in left:
        print(f"{each.module}:{each.line}: {each.change}  ({each.outcome})")
    return 1 if len(left) > (1 - WANTED) * len(found) else 0


if __name__ == "__main__":
    sys.exit(main())
