"""Kill writers at any moment, fill their disk, cut their power, and look whether what is left is the old or the new, whole.

Then fail kernels and memory inside the methods of a session of each family.

Exit code 1 if anything was lost, mixed or left lying about.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from campaigns import campaign
from campaigns.faults import attacks, power
from campaigns.faults.methods import try_methods
from campaigns.faults.writers import (
    CHECKPOINT,
    OPTIONS,
    Compile,
    Export,
    Replace,
    SaveChat,
    SaveFirst,
    SaveOver,
    Writer,
    other_options,
)
from campaigns.soak.subjects import SUBJECTS, Subject

INSIDE = "inside methods"
Outcome = tuple[Counter[str], list[str]]
CAMPAIGNS = ("kill -9", "two writers, one killed", "full disk", "power cut", "Ctrl-C", INSIDE)
WRITERS: dict[str, Callable[[Path, Path], Writer]] = {
    "save": lambda one, other: SaveOver(one),
    "first save": lambda one, other: SaveFirst(one),
    "chat save": lambda one, other: SaveChat(one),
    "kernel build": lambda one, other: Compile(),
    "replace an artifact": Replace,
    "export": Export,
}
METHODS = [name for name, each in SUBJECTS.items() if each.kernels != "aten" and each.quantize in ("", "8w")]
"""The artifacts whose methods fail inside: of each recurrence, with our kernels and with the runtime's."""


@dataclass(frozen=True)
class Plan:
    """How often each writer meets each fault. exports: of whole ones, which take seconds. lines: where Ctrl-C is pressed."""

    kills: int
    exports: int
    disks: int
    lines: int
    seed: int


def arguments() -> argparse.Namespace:
    """Parse the arguments; exits with 2 for wrong ones."""
    parser = campaign.parser("faults", __doc__)
    parser.add_argument("--kills", type=int, default=300, help="of each writer but whole exports (default: 300)")
    parser.add_argument("--exports", type=int, default=30, help="whole exports to kill (default: 30)")
    parser.add_argument("--disks", type=int, default=40, help="sizes of a disk to try (default: 40)")
    parser.add_argument("--lines", type=int, default=5000, help="most lines to press Ctrl-C at (default: 5000)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments (default: 0)")
    parser.add_argument("--only", choices=CAMPAIGNS, action="append", help="a kind of fault; all without this")
    parser.add_argument("--writer", choices=WRITERS, action="append", help="a writer; all without this")
    parser.add_argument(
        "--write", nargs=3, type=Path, help=argparse.SUPPRESS
    )  # what the recorder runs: two artifacts, a folder
    options = parser.parse_args()
    if min(options.kills, options.exports, options.disks, options.lines) < 0:
        parser.error("--kills, --exports, --disks and --lines are 0 or more")
    return options


def main() -> int:
    """Run the campaigns; a line for each as it ends, and what was wrong."""
    options = arguments()
    names = options.writer or list(WRITERS)
    if options.write:
        one, other, folder = options.write
        writer = WRITERS[names[0]](one, other)
        writer.write(folder)
        return 0
    plan = Plan(options.kills, options.exports, options.disks, options.lines, options.seed)
    failed = False
    with tempfile.TemporaryDirectory(prefix="hybridge-faults-") as scratch:
        one, other = artifacts(Path(scratch))
        print("| writer | fault | times | found | seconds | wrong |\n|---|---|---|---|---|---|", flush=True)
        for name in names:
            for fault, run in campaigns(name, one, other, Path(scratch) / "work", plan):
                if fault in (options.only or CAMPAIGNS):
                    failed |= report(name, fault, run)
        if INSIDE in (options.only or CAMPAIGNS) and not options.writer:
            for subject in map(SUBJECTS.__getitem__, METHODS):
                failed |= report(subject.name, INSIDE, partial(fail_inside, subject, Path(scratch)))
    return 1 if failed else 0


def artifacts(scratch: Path) -> tuple[Path, Path]:
    """Export the two artifacts that replace each other."""

    def export() -> None:
        from hybridge.export.api import export_model

        for name, options in (("one", OPTIONS), ("other", other_options())):
            export_model(CHECKPOINT, scratch / name, options)

    in_child(export)
    return scratch / "one", scratch / "other"


def in_child(export: Callable[[], object]) -> None:
    """Export in a child: exporting starts threads, and a fork loses them."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            export()
            status = 0
        finally:
            os._exit(status)
    if os.waitpid(child, 0)[1]:
        print("scripts/trust faults: the artifacts to play with could not be exported", file=sys.stderr)
        raise SystemExit(1)


def fail_inside(subject: Subject, scratch: Path) -> Outcome:
    """Fail every kernel and request for memory of a family's methods."""
    in_child(lambda: subject.prepare(scratch))
    found = try_methods(scratch / subject.name)
    return found.outcomes, found.wrong


def campaigns(name: str, one: Path, other: Path, work: Path, plan: Plan) -> Iterator[tuple[str, Callable[[], Outcome]]]:
    """Each fault that a writer meets, and what runs it."""
    writer = WRITERS[name](one, other)
    is_long = isinstance(writer, Export)
    count = plan.exports if is_long else plan.kills
    yield "kill -9", lambda: attacks.kill_writers(writer, work, count, plan.seed)
    yield "Ctrl-C", lambda: attacks.press_ctrl_c(writer, work, min(count, plan.lines) if is_long else plan.lines, plan.seed)
    if is_long:
        return
    yield "two writers, one killed", lambda: attacks.two_writers(writer, work, count // 3, plan.seed)
    if attacks.can_mount():
        yield "full disk", lambda: attacks.fill_disks(writer, work, plan.disks)
    command = [sys.executable, "-m", "campaigns.faults", "--writer", name, "--write", str(one), str(other)]
    yield "power cut", lambda: power.campaign(writer, work, command)


def report(name: str, fault: str, run: Callable[[], Outcome]) -> bool:
    """Run a campaign and print its line; True where anything was wrong."""
    start = time.monotonic()
    outcomes, wrong = run()
    found = ", ".join(f"{outcome} {count}" for outcome, count in sorted(outcomes.items()))
    times = sum(outcomes.values()) + len(wrong)
    print(f"| {name} | {fault} | {times} | {found} | {time.monotonic() - start:.0f} | {len(wrong)} |", flush=True)
    for line in wrong[:10]:
        print(f"  {line}", file=sys.stderr, flush=True)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
