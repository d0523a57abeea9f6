"""Kill a writer at any moment, let it run out of room, and press Ctrl-C at every line of its work."""

from __future__ import annotations

import os
import random
import select
import shutil
import signal
import statistics
import subprocess
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Self

from interrupts import Interrupt

from campaigns.faults.writers import Broken, Writer, leftovers
from hybridge.errors import HybridgeError

Disturb = Callable[[Writer, Path, float], bool]
"""Writes in a child and disturbs it so many seconds later; False where it was done before."""
TRIES = 10
"""For each kill that is wanted, at most: some come when the writer is done."""


def kill_writers(writer: Writer, work: Path, kills: int, seed: int) -> tuple[Counter[str], list[str]]:
    """Return what was found how often, and what was wrong, after so many kills of a writer over the old.

    Writers that were done before they were killed are counted as ``finished``, beside the kills.
    """
    return _repeat("kill", kill, writer, work, kills, f"{seed} {writer.name}")


def two_writers(writer: Writer, work: Path, rounds: int, seed: int) -> tuple[Counter[str], list[str]]:
    """Return the same of two writers at once in one place, one of which is killed."""
    return _repeat("two writers", kill_one_of_two, writer, work, rounds, f"{seed} two {writer.name}")


def _repeat(what: str, disturb: Disturb, writer: Writer, work: Path, times: int, seed: str) -> tuple[Counter[str], list[str]]:
    rng, span = random.Random(seed), duration(writer, work)
    outcomes: Counter[str] = Counter()
    wrong: list[str] = []
    for number in range(TRIES * times):
        if sum(outcomes.values()) - outcomes["finished"] + len(wrong) == times:
            break
        try:
            outcomes[_once(disturb, writer, fresh(work), rng.uniform(0.0, 1.25 * span))] += 1
        except Broken as error:
            wrong.append(f"{writer.name}, {what} {number}: {error}")
    return outcomes, wrong


def _once(disturb: Disturb, writer: Writer, folder: Path, after: float) -> str:
    """Return what a disturbed writer left, once the next one came to its end there. Raises Broken."""
    writer.before(folder)
    expected = writer.found(folder)
    killed = disturb(writer, folder, after)
    outcome = writer.check(folder, expected)
    if not killed and outcome != "new":
        raise Broken("it was written to its end, and is not there")
    writer.write(folder)
    if writer.found(folder) != "new" or leftovers(writer, folder):
        raise Broken(f"the next writer leaves {leftovers(writer, folder) or writer.found(folder)}")
    return outcome if killed else "finished"


def duration(writer: Writer, work: Path) -> float:
    """Return the seconds of a write that nobody disturbs, as it is written to be killed: the median where it is short."""
    taken = [_seconds(writer, work)]
    if taken[0] < 1:
        taken += [_seconds(writer, work) for _ in range(8)]
    return statistics.median(taken)


def _seconds(writer: Writer, work: Path) -> float:
    folder = fresh(work)
    writer.before(folder)
    with Child(writer, folder) as child:
        start = time.perf_counter()
        child.wait(None)
        return time.perf_counter() - start


def kill(writer: Writer, folder: Path, after: float) -> bool:
    """Write in a child, and kill it ``after`` seconds; False where it was done before. Raises Broken where it fails."""
    with Child(writer, folder) as child:
        done = child.wait(after)
    if done and child.exit_code > 0:
        raise Broken("the writer failed by itself")
    return not done


def kill_one_of_two(writer: Writer, folder: Path, after: float) -> bool:
    """Write in two children at once, and kill one of them; False where it was done before. Either may be told of the other."""
    with Child(writer, folder) as second:
        with Child(writer, folder) as first:
            done = first.wait(after)
        second.wait(None)
    return not done


class Child:
    """A process that began to write; it is killed at the end of the context, unless it has ended by itself.

    How long a process takes to go is no part of its write: a pipe tells when the write is done.
    """

    exit_code: int
    """Of the child, after the context; negative where it was killed."""

    def __init__(self, writer: Writer, folder: Path) -> None:
        self._told, tells = os.pipe()
        os.set_inheritable(tells, True)
        self._pid = os.fork()
        if self._pid == 0:
            self._write(writer, folder, tells)
        os.close(tells)
        os.read(self._told, 1)

    def wait(self, seconds: float | None) -> bool:
        """Return whether it is done within so many seconds, for ever without a number."""
        return bool(select.select([self._told], [], [], seconds)[0])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self.wait(0) or os.read(self._told, 1):
            os.kill(self._pid, signal.SIGKILL)
        os.close(self._told)
        self.exit_code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])

    def _write(self, writer: Writer, folder: Path, tells: int) -> None:
        """In the child; without an answer where it fails, and where another program takes its place."""
        status = 1
        try:
            os.write(tells, b"1")
            writer.write_until_killed(folder)
            os.write(tells, b"2")
            status = 0
        finally:
            os._exit(status)


def fresh(work: Path) -> Path:
    """Return an empty folder."""
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    return work


PAGE = 4096


def can_mount() -> bool:
    """Return whether this user may mount a file system."""
    return os.geteuid() == 0 and Path("/proc/filesystems").exists()


def fill_disks(writer: Writer, work: Path, sizes: int) -> tuple[Counter[str], list[str]]:
    """Return what was found how often, and what was wrong, on ``sizes`` disks: just the old fits, up to three times it."""
    used = _used(writer, work)
    outcomes: Counter[str] = Counter()
    wrong: list[str] = []
    for number in range(sizes):
        room = used + PAGE * (number * (2 * used // PAGE + 64) // sizes)
        try:
            outcomes[_on_a_disk_of(room, writer, work)] += 1
        except Broken as error:
            wrong.append(f"{writer.name}, a disk of {room} bytes: {error}")
    return outcomes, wrong


def _used(writer: Writer, work: Path) -> int:
    """Bytes of a disk that has the old and nothing else."""
    with _Disk(work, 1 << 30):
        writer.before(work)
        status = os.statvfs(work)
        return (status.f_blocks - status.f_bfree) * status.f_frsize


def _on_a_disk_of(room: int, writer: Writer, work: Path) -> str:
    with _Disk(work, room + PAGE):
        writer.before(work)
        expected = writer.found(work)
        try:
            writer.write(work)
        except HybridgeError as error:
            if "full" not in str(error) and "No space" not in str(error):
                raise Broken(f"the error does not say that the disk is full: {error}") from None
            if writer.check(work, expected) == "new":
                raise Broken("it was written, and an error was raised") from None
            if left := leftovers(writer, work):
                raise Broken(f"it left {left}") from None
            return "refused"
        except OSError as error:
            raise Broken(f"a bare {type(error).__name__}: {error}") from None
        if writer.found(work) != "new":
            raise Broken("it was written to its end, and is not there")
        return "written"


class _Disk:
    """A file system in memory at ``path``, of so many bytes."""

    def __init__(self, path: Path, size: int) -> None:
        self._path, self._size = path, size

    def __enter__(self) -> None:
        self._path.mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={self._size}", "faults", self._path], check=True)

    def __exit__(self, *error: object) -> None:
        subprocess.run(["umount", self._path], check=True)


def press_ctrl_c(writer: Writer, work: Path, most: int, seed: int) -> tuple[Counter[str], list[str]]:
    """Return what was found how often, and what was wrong: after an interrupt at each line, or at ``most`` of them."""
    outcomes: Counter[str] = Counter()
    wrong: list[str] = []
    for place in places(writer, work, most, seed):
        try:
            outcomes[struck(writer, fresh(work), place)] += 1
        except Broken as error:
            wrong.append(f"{writer.name}, Ctrl-C at line {place}: {error}")
    return outcomes, wrong


def places(writer: Writer, work: Path, most: int, seed: int) -> Iterable[int]:
    """Return the numbers of the lines to strike at: all that a write runs, where there are no more than ``most``."""
    folder = fresh(work)
    writer.before(folder)
    counting = Interrupt(-1)
    counting.struck(lambda: writer.write(folder))
    every = range(1, counting.places + 1)
    return every if len(every) <= most else sorted(random.Random(f"{seed} {writer.name}").sample(every, most))


def struck(writer: Writer, folder: Path, place: int) -> str:
    """Return what is found once a write was interrupted and another one came to its end. Raises Broken."""
    writer.before(folder)
    expected = writer.found(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # files that were just opened, and are closed when they are forgotten
        was_struck = Interrupt(place).struck(lambda: writer.write(folder))
    outcome = writer.check(folder, expected)
    if not was_struck and outcome != "new":
        raise Broken("it was written to its end, and is not there")
    try:
        writer.write(folder)
    except HybridgeError as error:
        raise Broken(f"the next writer fails: {error}") from None
    if writer.found(folder) != "new" or leftovers(writer, folder):
        raise Broken(f"the next writer leaves {leftovers(writer, folder) or writer.found(folder)}")
    return outcome if was_struck else "finished"
