"""Time the parts of a method: each as a method of its own, in turn with the others and with the whole.

A part's method has the part's instructions over the same memory and weights, and before them the bookkeeping that they
need (positions, masks, indices); the time of the bookkeeping alone is taken off again. What the other instructions would
have computed is missing, so its numbers mean nothing and only its time does. In turn, because a part that ran again and again
would find its weights in the processor's caches, where a decode never finds them.
"""

from __future__ import annotations

import dataclasses
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from executorch.exir.schema import Chain

from hybridge.cache.errors import UsageError
from hybridge.export.profiling.instructions import Instruction, read_instructions
from hybridge.export.profiling.parts import POSITIONS, WHOLE, bytes_moved, part_names
from hybridge.export.profiling.program_file import ProgramFile
from hybridge.runtime.artifact import Artifact
from hybridge.runtime.program import Program
from hybridge.runtime.session import Session

Clock = Callable[[], float]

READ = 2**26
"""Numbers of 4 bytes to measure the bandwidth with: far beyond the last cache."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """Instructions that belong together: how many, their time, the bytes that they move, and their operators with counts."""

    name: str
    calls: int
    milliseconds: float
    bytes: int
    operators: dict[str, int]

    def share_of_limit(self, bandwidth: float) -> float:
        """How near it is to reading its bytes at ``bandwidth`` bytes per second: 1 is the limit, above it caches help."""
        return self.bytes / bandwidth / (self.milliseconds / 1e3) if self.milliseconds > 0 else 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Profile:
    """A method at a context length: its time as a whole, its parts, and the machine's read bandwidth in bytes per second."""

    method: str
    context: int
    milliseconds: float
    parts: list[Part]
    bandwidth: float

    @property
    def sum(self) -> float:
        """Milliseconds of all parts together, to be compared with the whole."""
        return sum(part.milliseconds for part in self.parts)

    @property
    def bytes(self) -> int:
        """Of all parts."""
        return sum(part.bytes for part in self.parts)

    def to_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        shares = [{"share_of_limit": part.share_of_limit(self.bandwidth)} for part in self.parts]
        parts = [dataclasses.asdict(part) | share for part, share in zip(self.parts, shares, strict=True)]
        return dataclasses.asdict(self) | {"sum": self.sum, "parts": parts}


class Profiler:
    """An artifact's program with a method for each part of ``methods``."""

    def __init__(self, artifact: Artifact, methods: Sequence[str], folder: Path) -> None:
        """``folder`` is for a copy of the program, of about its size. Raises ArtifactError."""
        file = ProgramFile(artifact.program)
        vocabulary = artifact.manifest.vocab_size
        self._cuts = {name: Cut(name, file.plans[name], vocabulary) for name in methods}
        copied = Artifact(folder=folder, manifest=artifact.manifest)
        file.write(copied.program, [plan for cut in self._cuts.values() for plan in cut.plans])
        self._program = Program(copied)
        for cut in self._cuts.values():
            for plan in cut.plans:
                self._program.load_method(plan.name)
        self._session = Session(self._program, artifact.manifest)
        self._shapes = {name: artifact.manifest.methods[name].inputs[0].shape for name in methods}

    def run(self, method: str, context: int, rounds: int, clock: Clock = time.perf_counter) -> Profile:
        """Times of a method after ``context`` tokens: medians of ``rounds`` rounds, in each of which every part runs once.

        With one thread ``time.process_time`` is the better clock: what else the machine does is not counted.
        """
        cut = self._cuts[method]
        tokens = torch.zeros(self._shapes[method], dtype=torch.long)
        bandwidth: list[float] = []
        times: dict[str, list[float]] = {name: [] for name in cut.names}
        for _ in range(rounds):
            bandwidth.append(read_bandwidth())
            self._session.reset()
            self._session.prefill([0] * context)
            self._program.call(cut.method(WHOLE), tokens)  # the first call after a pause is slower than the others
            for name, measured in times.items():
                self._program.call(cut.method(POSITIONS), tokens)  # so that what is taken off costs the same every time
                start = clock()
                self._program.call(cut.method(name), tokens)
                measured.append(clock() - start)
        medians = {name: statistics.median(measured) for name, measured in times.items()}
        return cut.profile(medians, context, statistics.median(bandwidth))


class Cut:
    """A method's plan, cut into parts."""

    def __init__(self, method: str, plan: Any, vocab_size: int) -> None:
        self._name = method
        self._instructions = read_instructions(plan)
        self._parts = part_names(self._instructions, vocab_size)
        self.names = [WHOLE, POSITIONS, *(name for name in dict.fromkeys(self._parts) if name != POSITIONS)]
        self.plans = [self._plan(plan, name) for name in self.names]

    def method(self, part: str) -> str:
        """The name of a part's method."""
        return f"{self._name}: {part}"

    def profile(self, seconds: dict[str, float], context: int, bandwidth: float) -> Profile:
        """What was measured by name; bookkeeping is in every part's time but counted once."""
        own = {name: max(0.0, seconds[name] - seconds[POSITIONS]) for name in self.names} | {POSITIONS: seconds[POSITIONS]}
        parts = [self._part(name, own[name], context) for name in self.names if name != WHOLE]
        return Profile(
            method=self._name,
            context=context,
            milliseconds=seconds[WHOLE] * 1e3,
            parts=sorted(parts, key=lambda part: -part.milliseconds),
            bandwidth=bandwidth,
        )

    def _part(self, name: str, seconds: float, context: int) -> Part:
        members = self._members(name)
        return Part(
            name=name,
            calls=len(members),
            milliseconds=seconds * 1e3,
            bytes=sum(bytes_moved(each, context) for each in members),
            operators=dict(Counter(f"{each.name} {list(each.shape)}" for each in members)),
        )

    def _members(self, part: str) -> list[Instruction]:
        return [each for each, name in zip(self._instructions, self._parts, strict=True) if part in (name, WHOLE)]

    def _plan(self, plan: Any, part: str) -> Any:
        kept = [
            each.source
            for each, name in zip(self._instructions, self._parts, strict=True)
            if part in (name, WHOLE) or name == POSITIONS
        ]
        chain = Chain(inputs=[], outputs=[], instructions=kept, stacktrace=None)
        return dataclasses.replace(plan, name=self.method(part), chains=[chain], outputs=[])


def read_bandwidth() -> float:
    """Bytes per second of one pass over memory that no cache holds, on PyTorch's threads."""
    numbers = torch.ones(READ, dtype=torch.int32)
    start = time.perf_counter()
    numbers.max()
    return numbers.nbytes / (time.perf_counter() - start)


def profile(
    artifact: Artifact, methods: Sequence[str], context: int, rounds: int, clock: Clock = time.perf_counter
) -> list[Profile]:
    """A profile of each of ``methods``, which take tokens, after ``context`` tokens.

    Raises ArtifactError, and UsageError where the context leaves no room for a block.
    """
    options = artifact.manifest.options
    room = options.max_seq_len - max(options.verify_len, 2)  # a decode runs twice in each round
    if not 1 <= context <= room:
        raise UsageError(f"a context of {context} tokens is not 1 to {room}, which this artifact has room for.")
    with tempfile.TemporaryDirectory(prefix="hybridge-profile-") as folder:
        profiler = Profiler(artifact, methods, Path(folder))
        return [profiler.run(name, context, rounds, clock) for name in methods]
