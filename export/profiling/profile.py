"""Time the parts of a method: each as a method of its own, in turn with the others and with the whole.

What the instructions of other parts would have computed is missing, so the numbers that a part computes mean nothing; only its
time does. The time of the bookkeeping that a part carries along (positions, masks, indices) is taken off again. In turn,
because a part that ran again and again would find its weights in the processor's caches, where a decode never finds them.
"""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from hybridge.cache.errors import UsageError
from hybridge.export.profiling.bandwidth import Bandwidth, Clock
from hybridge.export.profiling.cut import Cut, Profile
from hybridge.export.profiling.executorch_program import ExecuTorchProgram
from hybridge.export.profiling.parts import POSITIONS, WHOLE
from hybridge.export.profiling.program_file import ProgramFile
from hybridge.runtime.artifacts.artifact import Artifact, file_entry
from hybridge.runtime.artifacts.checked_file import CheckedFile
from hybridge.runtime.artifacts.manifest import PROGRAM
from hybridge.runtime.core.session import Session

READ = 2**26
"""Numbers of 4 bytes to measure the bandwidth with: far beyond the last cache."""


def profile(
    artifact: Artifact, methods: Sequence[str], context: int, rounds: int, clock: Clock = time.perf_counter
) -> list[Profile]:
    """Return a profile of each of ``methods`` (prefill, decode, a verify) after ``context`` tokens.

    Raises ArtifactError, and UsageError where the context leaves no room for a block.
    """
    options = artifact.manifest.options
    room = options.max_seq_len - max(options.prefill_chunk, options.verify_len, 2)  # a decode runs twice in each round
    if not 1 <= context <= room:
        raise UsageError(f"a context of {context} tokens is not 1 to {room}, which this artifact has room for.")
    with tempfile.TemporaryDirectory(prefix="hybridge-profile-") as folder:
        profiler = Profiler(artifact, methods, Path(folder))
        return [profiler.run(name, context, rounds, clock) for name in methods]


class Profiler:
    """An artifact's program with a method for each part of ``methods``."""

    def __init__(self, artifact: Artifact, methods: Sequence[str], folder: Path) -> None:
        """``folder`` is for a copy of the program, of about its size. Raises ArtifactError."""
        file = ProgramFile(artifact.program)
        vocabulary = artifact.manifest.vocab_size
        self._cuts = {name: Cut(name, file.plans[artifact.manifest.program_method(name)], vocabulary) for name in methods}
        path = folder / PROGRAM
        plans = [plan for cut in self._cuts.values() for plan in cut.plans]
        file.write(path, plans)
        opened = {PROGRAM: CheckedFile(path, file_entry(path))}
        self.program = ExecuTorchProgram(Artifact(folder=folder, manifest=artifact.manifest, opened=opened))
        for plan in plans:
            self.program.load_method(plan.name)
        self.session = Session.over(self.program, artifact.manifest)
        shapes = {name: [each.shape for each in artifact.manifest.methods[name].inputs] for name in methods}
        self._inputs = {name: _inputs(*each) for name, each in shapes.items()}
        self._memory = Bandwidth(READ)

    def run(self, method: str, context: int, rounds: int, clock: Clock = time.perf_counter) -> Profile:
        """Time a method after ``context`` tokens: medians of ``rounds`` rounds, in each of which every part runs once.

        With one thread ``time.process_time`` is the better clock: what else the machine does is not counted.
        """
        cut = self._cuts[method]
        inputs = self._inputs[method]
        bandwidth: list[float] = []
        times: dict[str, list[float]] = {name: [] for name in cut.names}
        for _ in range(rounds):
            bandwidth.append(self._memory.measure(clock=clock))
            self.session.reset()
            self.session.prefill([0] * context)
            self.program.call(cut.method(WHOLE), *inputs)  # the first call after a pause is slower than the others
            for name, measured in times.items():
                self.program.call(cut.method(POSITIONS), *inputs)  # so that what is taken off costs the same every time
                start = clock()
                self.program.call(cut.method(name), *inputs)
                measured.append(clock() - start)
        medians = {name: statistics.median(measured) for name, measured in times.items()}
        return cut.profile(medians, context, statistics.median(bandwidth))


def _inputs(tokens: Sequence[int], *counts: Sequence[int]) -> tuple[torch.Tensor, ...]:
    """Tokens of that shape, and that all of them count."""
    count = math.prod(tokens)
    return torch.zeros(*tokens, dtype=torch.long), *(torch.full(tuple(each), count) for each in counts)
