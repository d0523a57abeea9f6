"""Random programs of all operations against the uncached model, over each runtime."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from hybridge.export.check.random_program import Oracle, RandomProgram
from hybridge.export.check.validate import OPERATIONS_PER_PROGRAM, TOLERANCE, ValidationReport, compare
from hybridge.runtime import Model, Session, open_artifact

OPERATIONS, INTERLEAVED_OPERATIONS = 2_000, 10_000


def print_errors(folder: Path, oracle: Oracle) -> bool:
    """Print the table; returns whether every error is within the tolerance."""
    print(f"\n| runtime | random operations | worst error, of the largest logit (asked: {TOLERANCE:.0e}) |\n|---|---|---|")
    right = True
    model = Model.open(open_artifact(folder / "hybridge"))
    runs: dict[str, list[Session]] = {
        "`Session`, ExecuTorch, `--kernels llm`": [Session.load(folder / "llm")],
        "`Session`, ExecuTorch, `--kernels hybridge`": [Session.load(folder / "hybridge")],
        "`Session`, onnxruntime": [Session.load(folder / "onnx")],
        "two `Session`s of one `Model`, interleaved": [Session(model), Session(model)],
    }
    for name, sessions in runs.items():
        report = play(sessions, oracle, INTERLEAVED_OPERATIONS if len(sessions) > 1 else OPERATIONS)
        print(f"| {name} | {report.operations.total():,} | {report.worst_relative:.1e} |", flush=True)
        right = right and report.worst_relative <= TOLERANCE
    return right


def play(sessions: Sequence[Session], oracle: Oracle, operations: int) -> ValidationReport:
    """Let the sessions take turns."""
    report = ValidationReport(seed=0, tolerance=TOLERANCE)
    for i in range(operations // (OPERATIONS_PER_PROGRAM * len(sessions))):
        programs = [RandomProgram(session, random.Random(f"{i} {number}")) for number, session in enumerate(sessions)]
        for count in range(1, OPERATIONS_PER_PROGRAM + 1):
            for program in programs:
                program.play(count)
        for program in programs:
            report.operations.update(name.split()[0] for name in program.log)
            compare(report, i, program, oracle)
    return report
