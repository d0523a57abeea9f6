"""Measure an artifact on a device, in a form that can be compared with other devices' figures."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from statistics import median
from typing import Any

from hybridge.errors import UsageError
from hybridge.export.profile.parts import Bandwidth, bytes_moved, read_instructions
from hybridge.export.profile.program import ProgramFile
from hybridge.runtime.artifact.folder import Artifact
from hybridge.runtime.binding.library import threads
from hybridge.runtime.binding.session import Session
from hybridge.runtime.kernels import library
from hybridge.runtime.pinned import EXECUTORCH
from hybridge.runtime.platforms import processor_name

SECONDS = 2.0
"""Seconds to measure each operation, if the context has room for it."""
PROMPT = 512


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeviceReport:
    """The figures of a device. Times in milliseconds, speeds in tokens per second, all medians; bandwidth in bytes per second.

    instruction_set: of our kernels, the one that runs; instruction_sets: those that the processor has; empty with other
    kernels. decode_bytes: read and written by a decode after ``context`` tokens.
    """

    processor: str
    cores: int
    threads: int
    instruction_set: str
    instruction_sets: list[str]
    model_type: str
    quantize: str
    kernels: str
    megabytes: float
    context: int
    decode_milliseconds: float
    verify_len: int
    verify_milliseconds: float
    commit_milliseconds: float
    prefill_tokens_per_second: float
    decode_bytes: int
    bandwidth: float
    hybridge: str = version("hybridge")
    executorch: str = EXECUTORCH

    @property
    def decode_tokens_per_second(self) -> float:
        return 1e3 / self.decode_milliseconds

    @property
    def share_of_bandwidth(self) -> float:
        """Return the share of a decode's time that moving its bytes at the measured bandwidth would take."""
        return self.decode_bytes / self.bandwidth / (self.decode_milliseconds / 1e3)

    def to_dict(self) -> dict[str, Any]:
        """Return a dictionary for ``--json``."""
        derived = {name: getattr(self, name) for name in ("decode_tokens_per_second", "share_of_bandwidth")}
        return dataclasses.asdict(self) | derived

    def row(self) -> str:
        """Return the line for the table of devices in docs/benchmarks.md."""
        chosen = self.instruction_set or f"--kernels {self.kernels}"
        cells = (
            f"{self.processor}, {self.cores} cores",
            f"{chosen}, {self.threads} threads",
            f"{self.model_type} {self.quantize}, {self.megabytes:.0f} MB",
            f"{self.decode_tokens_per_second:.1f}",
            f"{self.verify_milliseconds / self.decode_milliseconds:.2f}",
            f"{self.commit_milliseconds / self.verify_milliseconds:.1%}",
            f"{self.prefill_tokens_per_second:.0f}",
            f"{self.share_of_bandwidth:.0%} of {self.bandwidth / 1e9:.1f} GB/s",
        )
        return f"| {' | '.join(cells)} |"


def measure_device(artifact: Artifact, context: int) -> DeviceReport:
    """Measure a .pte after ``context`` tokens. Raises what opening it raises, and UsageError if it has no room for them."""
    options = artifact.manifest.options
    if options.format != "pte":
        raise UsageError(f"{artifact.folder} is for onnxruntime, which --device is not for; export it with --format pte.")
    room = options.max_seq_len - context - options.verify_len
    if room < 1:
        raise UsageError(f"a context of {context} tokens leaves no room in {options.max_seq_len}; give a smaller --context.")
    session = Session.of(artifact)
    bandwidth = Bandwidth()
    before = bandwidth.measure(times=5)
    decodes = _decodes(session, context, room)
    verifies, commits = _verifies(session, context, room)
    prefill = _prefill(session)
    own = artifact.manifest.needs_kernels
    return DeviceReport(
        processor=processor_name(),
        cores=os.cpu_count() or 1,
        threads=threads(),
        instruction_set=library.load() if own else "",
        instruction_sets=library.available_instruction_sets() if own else [],
        model_type=artifact.manifest.model_type,
        quantize=options.quantize,
        kernels=options.kernels,
        megabytes=artifact.program.stat().st_size / 1e6,
        context=context,
        decode_milliseconds=1e3 * median(decodes),
        verify_len=options.verify_len,
        verify_milliseconds=1e3 * median(verifies),
        commit_milliseconds=1e3 * median(commits),
        prefill_tokens_per_second=prefill,
        decode_bytes=decode_bytes(artifact, context),
        bandwidth=median((before, bandwidth.measure(times=5))),
    )


def decode_bytes(artifact: Artifact, context: int) -> int:
    """Return the bytes that a decode after ``context`` tokens reads and writes, by its instructions."""
    plan = ProgramFile(artifact.program).plans[artifact.manifest.program_method("decode")]
    return sum(bytes_moved(each, context) for each in read_instructions(plan))


def _decodes(session: Session, context: int, room: int) -> list[float]:
    _fill(session, context)
    return [_timed(session.decode, _token(session, i)) for i in _for_a_while(room)]


def _verifies(session: Session, context: int, room: int) -> tuple[list[float], list[float]]:
    """Return the seconds of verifies, and of commits of half of their tokens."""
    _fill(session, context)
    block, accepted = [_token(session, i) for i in range(session.verify_len)], max(1, session.verify_len // 2)
    pairs = [(_timed(session.verify, block), _timed(session.commit, accepted)) for _ in _for_a_while(max(1, room // accepted))]
    verifies, commits = zip(*pairs, strict=True)
    return list(verifies), list(commits)


def _prefill(session: Session) -> float:
    prompt = [_token(session, i) for i in range(min(PROMPT, session.max_seq_len))]
    rates = []
    for _ in _for_a_while(PROMPT):
        session.reset()
        rates.append(len(prompt) / _timed(session.prefill, prompt))
    return median(rates)


def _fill(session: Session, context: int) -> None:
    session.reset()
    session.prefill([_token(session, i) for i in range(context)])


def _token(session: Session, i: int) -> int:
    return (7 * i + 11) % session.vocab_size


def _for_a_while(most: int) -> Iterator[int]:
    """Count up to ``most`` for ``SECONDS``, at least once."""
    start = time.perf_counter()
    for i in range(most):
        yield i
        if time.perf_counter() - start > SECONDS:
            return


def _timed(call: Callable[..., object], *arguments: object) -> float:
    start = time.perf_counter()
    call(*arguments)
    return time.perf_counter() - start
