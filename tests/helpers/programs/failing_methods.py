"""Fail each kernel and each request for memory inside the methods of a session, and look what is left.

Afterwards a session has its old state, bit for bit, or it refuses all but reset, restore, resume and load. After any of these
it answers as a session in which nothing ever failed. As a program: the artifact to try.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from pathlib import Path
from typing import Protocol

from compiler_flags import MACROS, include_flags

from hybridge.errors import BrokenStateError, HybridgeError, SnapshotError
from hybridge.runtime import Model, Session, open_artifact
from hybridge.runtime.kernels import compiling

SOURCE = Path(__file__).with_name("failing_steps.cpp")
PRELOADED = "HYBRIDGE_FAILING_STEPS"
"""The variable with the path of the library, by which a child finds it."""


FIRST_SLOT = "the first slot"
LOSING_SLOTS = ("reset", "first prefill", "draft", "decode over a slot", "verify over a slot")


class FailingStep(IntEnum):
    """The steps of a method that can be made to fail; see failing_steps.cpp."""

    ALLOCATION = 1
    KERNEL = 2


class Faults(Protocol):
    """Failures inside methods."""

    def arm(self, what: FailingStep, number: int) -> None:
        """Let the step of that number fail from now on."""

    def disarm(self) -> bool:
        """Let nothing fail any more; return whether anything did."""


class Preloaded:
    """The library that this process was started with."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(os.environ[PRELOADED])
        self._library.wrap_kernels()
        self._number = 0

    def arm(self, what: FailingStep, number: int) -> None:
        self._number = number
        self._library.fail_at(int(what), number)

    def disarm(self) -> bool:
        steps: int = self._library.steps()
        self._library.fail_at(0, 0)
        return steps >= self._number


@dataclass
class Report:
    """Counts of what was left after a fault, by method and kind of fault, and what was wrong."""

    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


class Trial:
    """One session that faults come to, and what one without any answers."""

    def __init__(self, model: Model, faults: Faults, folder: Path, every: int = 1) -> None:
        """folder: for a state file. every: try one fault of so many."""
        self.session, self.faults, self.every = Session(model), faults, every
        self.chunk, self.block = self.session.prefill_chunk, self.session.verify_len
        self.path, self.report = folder / "trial.state", Report()
        self._prepare_first()

    def _prepare_first(self) -> None:
        """Make a state with a text, two slots and a checkpoint of another text."""
        session = self.session
        session.prefill(self._tokens(5))
        self.checkpoint = session.checkpoint()
        if self._has_slots:
            session.snapshot(0)
        session.prefill(self._tokens(self.block + 1))
        if self._has_slots:
            session.snapshot(session.snapshot_slots - 1)
        for token in self._tokens(3):
            session.decode(token)
        session.save(self.path)

    @property
    def _has_slots(self) -> bool:
        return self.session.snapshot_slots > 0

    def _tokens(self, count: int) -> list[int]:
        return [(3 + 7 * i) % self.session.vocab_size for i in range(count)]

    def follow(self) -> list[bytes]:
        """Return what the session answers from its state on; the same of equal states."""
        session = self.session
        found = [session.decode(3).tobytes(), session.verify(self._tokens(self.block)).tobytes()]
        session.commit(min(2, self.block))
        return [
            *found,
            session.decode(7).tobytes(),
            session.prefill(self._tokens(self.chunk)).tobytes(),
            str(session.tokens).encode(),
        ]

    def before(self, method: str) -> None:
        """Bring the session to the state in which the method is called."""
        self.session.load_state(self.path)
        if method == "commit":
            self.session.verify(self._tokens(self.block))
        if method.endswith("over a slot"):
            self.session.restore(0)
        if method == "first prefill":
            self.session.reset()
        if method == "draft":
            self.session.decode(5)

    @cached_property
    def calls(self) -> Mapping[str, Callable[[], object]]:
        """The calls by their names."""
        session, block = self.session, self._tokens(self.block)
        calls: dict[str, Callable[[], object]] = {
            "decode": lambda: session.decode(9),
            "prefill": lambda: session.prefill(self._tokens(self.chunk)),
            "long prefill": lambda: session.prefill(self._tokens(self.chunk + self.block)),
            "first prefill": lambda: session.prefill(self._tokens(self.chunk + 2)),
            "verify": lambda: session.verify(block),
            "commit": lambda: session.commit(len(block) - 1),
            "reset": session.reset,
        }
        if self._has_slots:
            calls |= {"snapshot": lambda: session.snapshot(0), "restore": lambda: session.restore(0)}
        if session.snapshot_slots > 1:
            calls |= {"decode over a slot": calls["decode"], "verify over a slot": calls["verify"]}
        if session.model.draft_len:
            calls["draft"] = lambda: session.draft(session.hidden[-1:], [5])
        return calls

    @cached_property
    def mends(self) -> Mapping[str, Callable[[], object]]:
        """The calls that a broken session answers."""
        session = self.session
        mends: dict[str, Callable[[], object]] = {
            "reset": session.reset,
            "resume": lambda: session.resume(self.checkpoint),
            "load": lambda: session.load_state(self.path),
        }
        return mends | ({"restore": lambda: session.restore(session.snapshot_slots - 1)} if self._has_slots else {})

    def run(self) -> Report:
        """Try all of it."""
        mended: dict[str, list[bytes]] = {}
        for name, mend in {**self.mends, FIRST_SLOT: lambda: self.session.restore(0)}.items():
            if name == FIRST_SLOT and not self._has_slots:
                continue
            self.before("")
            mend()
            mended[name] = self.follow()
        for method in self.calls:
            self.before(method)
            expected = self.follow()
            for what in FailingStep:
                for number in self._numbers(method, what):
                    case = f"{method}, {what.name.lower()} {number}"
                    try:
                        self._look(method, case, expected, mended, number)
                    except (HybridgeError, AssertionError) as error:
                        self.report.wrong.append(f"{case}: {type(error).__name__} {error}")
        return self.report

    def _numbers(self, method: str, what: FailingStep) -> Iterator[int]:
        """Make the call with each fault, until it has no more steps of that kind."""
        number = 1
        while True:
            self.before(method)
            self.faults.arm(what, number)
            try:
                self.calls[method]()
                failed = False
            except HybridgeError:
                failed = True
            if not self.faults.disarm():
                assert not failed, f"{method} failed by itself"
                return
            if failed:
                yield number
            number += self.every

    def _look(self, method: str, case: str, expected: list[bytes], mended: Mapping[str, list[bytes]], number: int) -> None:
        mends = list(self.mends)
        try:
            self.session.checkpoint()
        except BrokenStateError:
            self.report.outcomes[f"{method}: refused"] += 1
            self._refuses_all()
            name = mends[number // self.every % len(mends)]
            try:
                self.mends[name]()
            except SnapshotError:
                assert name == "restore", case
                assert method in LOSING_SLOTS, "the slot was lost"
                return
            assert name != "restore" or not method.endswith("over a slot"), "a slot has rows of another text"
            assert self.follow() == mended[name], f"another state after {name}"
            return
        self.report.outcomes[f"{method}: old state"] += 1
        if method == "snapshot":
            self._is_whole_or_empty(0, mended[FIRST_SLOT])
        if method.endswith("over a slot"):
            self._is_whole_or_empty(self.session.snapshot_slots - 1, mended["restore"])
        assert self.follow() == expected, "another state than before"

    def _refuses_all(self) -> None:
        session = self.session
        refused: list[Callable[[], object]] = [
            *(lambda: session.decode(1), lambda: session.prefill([1]), lambda: session.verify([1]), lambda: session.commit(0)),
            lambda: session.save(self.path.with_suffix(".other")),
            lambda: list(session.generate([1])),
        ]
        if self._has_slots:
            refused.append(lambda: session.snapshot(0))
        for call in refused:
            try:
                call()
            except BrokenStateError:
                continue
            raise AssertionError("a broken session answered")

    def _is_whole_or_empty(self, slot: int, whole: list[bytes]) -> None:
        kept = self.session.checkpoint()
        try:
            self.session.restore(slot)
            assert self.follow() == whole, "a part of another state is in the slot"
        except SnapshotError:
            pass
        self.session.resume(kept)


def library() -> Path:
    """Compile the library to preload, or find it."""
    command = [compiling.compiler() or "g++", "-std=c++20", "-O1", "-fPIC", "-shared", *MACROS, *include_flags()]
    made = compiling.cache_folder("faults") / compiling.key([SOURCE, Path(__file__)]) / "failing_steps.so"

    def compile_to(unfinished: Path) -> None:
        if errors := compiling.errors_of([*command, str(SOURCE), "-o", str(unfinished), "-ldl"], unfinished.parent):
            raise SystemExit(f"the library that fails does not compile {errors}")

    return compiling.built(made, compile_to)


def try_methods(artifact: Path, every: int = 1) -> Report:
    """Try an artifact in a process of its own. every: one fault of so many."""
    command = [sys.executable, __file__, str(artifact), "--every", str(every)]
    settings = {"LD_PRELOAD": str(library()), PRELOADED: str(library())}
    done = subprocess.run(command, env=os.environ | settings, capture_output=True, text=True, check=False)
    if done.returncode:
        return Report(wrong=[f"{artifact.name}: {done.stderr[-2000:]}"])
    found = json.loads(done.stdout)
    return Report(Counter(found["outcomes"]), found["wrong"])


def main() -> None:
    """Try one artifact in this process, which has the library preloaded."""
    parser = argparse.ArgumentParser()
    parser.add_argument("artifact", type=Path)
    parser.add_argument("--every", type=int, default=1)
    options = parser.parse_args()
    model = Model.open(open_artifact(options.artifact))
    with tempfile.TemporaryDirectory() as folder:
        report = Trial(model, Preloaded(), Path(folder), options.every).run()
    sys.stdout.write(json.dumps({"outcomes": report.outcomes, "wrong": report.wrong}))


if __name__ == "__main__":
    main()
