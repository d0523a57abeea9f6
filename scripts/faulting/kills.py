"""Kill a writer at any moment of its work, in a process of its own."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from faulting.writers import Broken, Writer, leftovers

Disturb = Callable[[Writer, Path, float], bool]
"""Writes in a child and disturbs it so many seconds later; False where it was done before."""


def campaign(writer: Writer, work: Path, kills: int, seed: int) -> tuple[Counter[str], list[str]]:
    """Return what was found how often after a kill, and what was wrong. Every kill is of a writer over the old."""
    return _repeat("kill", kill, writer, work, kills, f"{seed} {writer.name}")


def two_writers(writer: Writer, work: Path, rounds: int, seed: int) -> tuple[Counter[str], list[str]]:
    """Return the same of two writers at once in one place, one of which is killed."""
    return _repeat("two writers", kill_one_of_two, writer, work, rounds, f"{seed} two {writer.name}")


def _repeat(what: str, disturb: Disturb, writer: Writer, work: Path, times: int, seed: str) -> tuple[Counter[str], list[str]]:
    rng, span = random.Random(seed), duration(writer, work)
    outcomes: Counter[str] = Counter()
    wrong: list[str] = []
    for number in range(times):
        folder = fresh(work)
        writer.before(folder)
        expected = writer.found(folder)
        try:
            killed = disturb(writer, folder, rng.uniform(0.0, 2.0 * span))
            outcome = writer.check(folder, expected)
            if not killed and outcome != "new":
                raise Broken("it was written to its end, and is not there")
            outcomes[outcome if killed else "finished"] += 1
            writer.write(folder)
            if writer.found(folder) != "new" or leftovers(writer, folder):
                raise Broken(f"the next writer leaves {leftovers(writer, folder) or writer.found(folder)}")
        except Broken as error:
            wrong.append(f"{writer.name}, {what} {number}: {error}")
    return outcomes, wrong


def duration(writer: Writer, work: Path) -> float:
    """Return the seconds of a write that nobody disturbs, as it is written to be killed."""
    folder = fresh(work)
    writer.before(folder)
    start = time.perf_counter()
    os.waitpid(_start(writer, folder), 0)
    return time.perf_counter() - start


def kill(writer: Writer, folder: Path, after: float) -> bool:
    """Write in a child, and kill it ``after`` seconds; False where it was done before."""
    child = os.fork()
    if child == 0:
        try:
            writer.write_until_killed(folder)
            os._exit(0)
        finally:
            os._exit(1)
    time.sleep(after)
    os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        raise Broken("the writer failed by itself")
    return os.WIFSIGNALED(status)


def kill_one_of_two(writer: Writer, folder: Path, after: float) -> bool:
    """Write in two children at once, and kill one of them; True, because neither need have come to its end."""
    children = [_start(writer, folder) for _ in range(2)]
    time.sleep(after)
    os.kill(children[0], signal.SIGKILL)
    for child in children:
        os.waitpid(child, 0)
    return True


def _start(writer: Writer, folder: Path) -> int:
    """A child that may be told that another one writes there."""
    child = os.fork()
    if child == 0:
        try:
            writer.write_until_killed(folder)
        finally:
            os._exit(0)
    return child


def fresh(work: Path) -> Path:
    """Return an empty folder."""
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    return work
