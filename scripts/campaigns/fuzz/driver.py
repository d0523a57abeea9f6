"""Runs a target's inputs in children, batch after batch, and tells which input ended or stopped one."""

from __future__ import annotations

import contextlib
import os
import select
import struct
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True)
class Input:
    """One input as the child reads it, and what a person should read of it. good: to refuse it is wrong."""

    data: bytes
    text: str
    good: bool = False


PIPE = b"\0a pipe that nobody writes to"
"""The data of an input that is no file's content: a pipe lies in the file's place."""


class Target(Protocol):
    """Something that takes hostile input, in a child process that ``command`` starts.

    The child reads inputs from stdin, each after its length (uint32, little-endian), and answers each with a line on stdout as
    soon as it is done: ``accepted``, ``refused: why``, or ``wrong: why`` for one that was not handled as it should have been.
    """

    name: str

    def prepare(self) -> None:
        """Build or make what the child needs; once."""

    def command(self) -> Sequence[str]:
        """Return what starts a child."""

    def environment(self) -> Mapping[str, str]:
        """Return the variables that a child needs besides this process's own."""

    def make(self, seed: int, index: int) -> Input:
        """Return input ``index`` of a seed: the same ones give the same input."""


OPTIONS = {
    "ASAN_OPTIONS": "allocator_may_return_null=1:max_allocation_size_mb=1024:detect_leaks=0:detect_stack_use_after_return=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
}


class Compiled:
    """A target whose child is a program under the sanitizers, which ``prepare`` compiles. words: arguments of its command."""

    program: Path
    words: Sequence[str] = ()

    def command(self) -> Sequence[str]:
        """Return what starts a child; see ``Target``."""
        return [str(self.program), *self.words]

    def environment(self) -> Mapping[str, str]:
        """Return the options of the sanitizers."""
        return OPTIONS


BATCH, KEPT_OUTPUT = 100, 4000
HANG_SECONDS, START_SECONDS = 10.0, 120.0
"""For an answer, and for the first one of a child, which imports before it."""


@dataclass(frozen=True)
class Finding:
    """An input that was not handled as it should have been: ``kind`` is crash, hang or wrong."""

    target: str
    seed: int
    index: int
    kind: str
    input: Input
    output: str

    def __str__(self) -> str:
        """Return what happened and how to see it again."""
        again = f"scripts/trust fuzz --only {self.target} --seed {self.seed} --first {self.index} --count 1"
        return f"{self.kind}: {self.input.text}\n  again: {again}\n  {self.output.strip()}"


@dataclass
class Report:
    """Outcomes of a target's inputs."""

    target: str
    outcomes: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)

    @property
    def inputs(self) -> int:
        return self.outcomes.total()

    def __str__(self) -> str:
        """Return one line of figures."""
        counts = ", ".join(f"{self.outcomes[kind]} {kind}" for kind in ("accepted", "refused", "crash", "hang", "wrong"))
        return f"{self.target}: {self.inputs} inputs: {counts}"


def fuzz(target: Target, seed: int, first: int, count: int | None, deadline: float | None) -> Report:
    """Run ``count`` inputs from ``first`` on, or as many as are answered before ``deadline`` (of ``time.monotonic``)."""
    report = Report(target.name)
    end = None if count is None else first + count
    while (end is None or first < end) and (deadline is None or time.monotonic() < deadline):
        size = BATCH if end is None else min(BATCH, end - first)
        run_batch(target, seed, range(first, first + size), report, deadline)
        first += size
    return report


def run_batch(target: Target, seed: int, indices: Sequence[int], report: Report, deadline: float | None = None) -> None:
    """Run inputs in as few children as it takes: after an input that ends or stops its child, another child continues.

    One that is answered after the ``deadline`` is the last: where every input ends its child, a batch takes an hour.
    """
    inputs = [target.make(seed, index) for index in indices]
    done = 0
    while done < len(inputs):
        for kind, output in _answers(target, inputs[done:]):
            if kind == "refused" and inputs[done].good:
                kind, output = "wrong", f"a good input is refused: {output}"
            if kind not in ("accepted", "refused"):
                report.findings.append(Finding(target.name, seed, indices[done], kind, inputs[done], output))
            report.outcomes[kind] += 1
            done += 1
            if deadline is not None and time.monotonic() >= deadline:
                return


def _answers(target: Target, inputs: Sequence[Input]) -> Iterator[tuple[str, str]]:
    """Yield the kind and the text of each answer; the last is the one at which the child ended or stopped, if it did."""
    with tempfile.TemporaryFile() as errors:
        child = subprocess.Popen(
            list(target.command()), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
            env={**os.environ, **target.environment()},
        )  # fmt: skip
        feeder = threading.Thread(target=_feed, args=(child, inputs), daemon=True)
        feeder.start()
        try:
            for number, _ in enumerate(inputs):
                seconds = HANG_SECONDS if number else START_SECONDS
                line = _line(child, seconds)
                if line is None:
                    yield "hang", f"no answer in {seconds:.0f} s"
                    return
                if not line:
                    child.wait()
                    errors.seek(0)
                    yield "crash", f"exit code {child.returncode}\n{errors.read().decode(errors='replace')[:KEPT_OUTPUT]}"
                    return
                kind, _, text = line.partition(": ")
                yield kind, text
        finally:
            child.kill()
            child.wait()
            feeder.join()
            for pipe in filter(None, (child.stdin, child.stdout)):
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


def _feed(child: subprocess.Popen[bytes], inputs: Iterable[Input]) -> None:
    assert child.stdin
    with contextlib.suppress(BrokenPipeError):  # its end is seen where it is read
        for each in inputs:
            child.stdin.write(struct.pack("<I", len(each.data)) + each.data)
        child.stdin.close()


def _line(child: subprocess.Popen[bytes], seconds: float) -> str | None:
    """Return the child's next line; empty at its end, None where it takes too long."""
    assert child.stdout
    line = b""
    deadline = time.monotonic() + seconds
    while not line.endswith(b"\n"):
        ready, _, _ = select.select([child.stdout], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return None
        byte = os.read(child.stdout.fileno(), 1)
        if not byte:
            return ""
        line += byte
    return line.decode(errors="replace").strip()
