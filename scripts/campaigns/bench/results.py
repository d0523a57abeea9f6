"""The measurements of a run, as kept in JSON, and the medians and ratios that tables and plots show. Nothing but arithmetic."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Literal

from pydantic import BaseModel, Field

Measure = Literal["decode", "verify", "commit", "prefill"]


class Samples(BaseModel):
    """Seconds of every step, a list for each round: rounds of different engines ran right after each other."""

    measure: Measure
    context: int
    threads: int
    rounds: list[list[float]]
    bandwidth: list[float] = Field(default=[], description="bytes per second that memory gave, for each round")

    @property
    def seconds(self) -> float:
        """The median over all steps."""
        return median(second for steps in self.rounds for second in steps)


class Row(BaseModel):
    """One engine with one shape. Bytes are resident after loading, and before anything was loaded; seconds to first logits."""

    variant: str
    group: str
    failed: str = ""
    file_bytes: int = 0
    export_seconds: float = 0.0
    export_memory: int = 0
    load_seconds: float = 0.0
    resident: int = 0
    bare: int = 0
    weight_bytes: float = 0.0
    bytes_read: dict[int, float] = Field(default={}, description="of one decode, by context")
    samples: list[Samples] = []
    missing: dict[str, str] = Field(default={}, description="why a measure has no samples")

    def find(self, measure: Measure, context: int, threads: int) -> Samples | None:
        """The samples of one cell, if it was measured."""
        wanted = (measure, context, threads)
        return next((s for s in self.samples if (s.measure, s.context, s.threads) == wanted), None)


class Run(BaseModel):
    """All rows of one shape, and the bandwidth in bytes per second that was measured in between, by threads."""

    shape: str
    contexts: list[int]
    threads: list[int]
    machine: dict[str, str]
    checkpoint_bytes: int = 0
    rows: list[Row] = []
    bandwidth: dict[int, list[float]] = {}

    def row(self, variant: str) -> Row | None:
        """The row of a variant, if it was asked for."""
        return next((row for row in self.rows if row.variant == variant), None)

    def of_limit(self, row: Row, context: int, threads: int) -> float | None:
        """The time of reading alone in that of a decode: round by round, with the bandwidth of each; the median."""
        decode = row.find("decode", context, threads)
        if not decode or not decode.bandwidth or context not in row.bytes_read:
            return None
        rounds = zip(decode.rounds, decode.bandwidth, strict=True)
        return median(row.bytes_read[context] / rate / median(steps) for steps, rate in rounds)


def speedup(samples: Samples | None, baseline: Samples | None) -> float | None:
    """Return how many times as fast as ``baseline``: the median over the rounds, because noise hits both of a round."""
    if samples is None or baseline is None:
        return None
    pairs = zip(samples.rounds, baseline.rounds, strict=False)
    return median(median(theirs) / median(ours) for ours, theirs in pairs)


def share(samples: Samples | None, whole: Samples | None) -> float | None:
    """The time of ``samples`` in that of ``whole``, medians."""
    return samples.seconds / whole.seconds if samples and whole else None


def merged(kept: Sequence[Run], new: Run) -> list[Run]:
    """``kept`` with the rows of ``new`` in place of those of its groups; a run of other contexts or threads goes altogether."""
    old = next((run for run in kept if run.shape == new.shape), None)
    if old and (old.contexts, old.threads) == (new.contexts, new.threads):
        groups = {row.group for row in new.rows}
        rows = [*(row for row in old.rows if row.group not in groups), *new.rows]
        rates = {n: old.bandwidth.get(n, []) + new.bandwidth.get(n, []) for n in new.threads}
        new = new.model_copy(update={"rows": rows, "bandwidth": rates})
    others = [run for run in kept if run.shape != new.shape]
    return [*others, new]


def save(runs: Sequence[Run], path: Path) -> None:
    """Write the raw samples of all runs, a line for each."""
    lines = ",\n".join(run.model_dump_json() for run in runs)
    path.write_text(f"[\n{lines}\n]\n")


def read(path: Path) -> list[Run]:
    """The runs of a file that ``save`` wrote."""
    return [Run.model_validate(run) for run in json.loads(path.read_text())]
