"""Cut the power at every moment of each writer's work: what is left must be the old or the new, whole.

Exit code 1 if anything was lost or mixed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from campaigns import campaign
from campaigns.faults import power
from campaigns.faults.writers import CHECKPOINT, OPTIONS, Compile, Replace, SaveChat, SaveFirst, SaveOver, Writer, other_options
from hybridge.export.api import export_model

WRITERS: dict[str, Callable[[Path, Path], Writer]] = {
    "save": lambda one, other: SaveOver(one),
    "first save": lambda one, other: SaveFirst(one),
    "chat save": lambda one, other: SaveChat(one),
    "kernel build": lambda one, other: Compile(),
    "replace an artifact": Replace,
}


def arguments() -> argparse.Namespace:
    """Parse the arguments; exits with 2 for wrong ones."""
    parser = campaign.parser("faults", __doc__)
    parser.add_argument("--writer", choices=WRITERS, action="append", help="a writer; all without this")
    parser.add_argument(
        "--write", nargs=3, type=Path, help=argparse.SUPPRESS
    )  # what the recorder runs: two artifacts, a folder
    return parser.parse_args()


def main() -> int:
    """Print a line for each writer as it ends, and what was wrong."""
    options = arguments()
    names = options.writer or list(WRITERS)
    if options.write:
        one, other, folder = options.write
        WRITERS[names[0]](one, other).write(folder)
        return 0
    failed = False
    with tempfile.TemporaryDirectory(prefix="hybridge-faults-") as scratch:
        print("| writer | power cuts | found | seconds | wrong |\n|---|---|---|---|---|", flush=True)
        one, other = artifacts(Path(scratch))
        for name in names:
            command = [sys.executable, "-m", "campaigns.faults", "--writer", name, "--write", str(one), str(other)]
            start = time.monotonic()
            outcomes, wrong = power.campaign(WRITERS[name](one, other), Path(scratch) / "work", command)
            report(name, outcomes, wrong, time.monotonic() - start)
            failed |= bool(wrong)
    return 1 if failed else 0


def artifacts(scratch: Path) -> tuple[Path, Path]:
    """Export the two artifacts that replace each other."""
    for name, options in (("one", OPTIONS), ("other", other_options())):
        export_model(CHECKPOINT, scratch / name, options)
    return scratch / "one", scratch / "other"


def report(name: str, outcomes: Counter[str], wrong: list[str], seconds: float) -> None:
    """Print the line of a writer, and the first findings."""
    found = ", ".join(f"{outcome} {count}" for outcome, count in sorted(outcomes.items()))
    times = sum(outcomes.values()) + len(wrong)
    print(f"| {name} | {times} | {found} | {seconds:.0f} | {len(wrong)} |", flush=True)
    for line in wrong[:10]:
        print(f"  {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
