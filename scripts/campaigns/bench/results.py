"""The measurements of a run: as JSON, as Markdown tables, and compared with hybridge's targets."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Literal

from pydantic import BaseModel, Field

from campaigns.bench.worker import COMMIT, PREFILL, VERIFY

PREFILL_CHUNK = "128"
INT4 = ("--quantize", "8da4w", "--group-size", "32", "--embedding-quantize", "4w")
INT8_CACHE = ("--kv-cache", "int8")


@dataclass(frozen=True)
class Bits:
    """Bits that one decode reads of each number: of the layers' matrices, of the head's, of keys and values."""

    linear: float = 32
    head: float = 32
    row: float = 32


@dataclass(frozen=True)
class Variant:
    """A row of the tables. options: of ``hybridge export``, or the kinds of weights and of keys and values of llama.cpp."""

    name: str
    group: str
    engine: str
    bits: Bits
    options: tuple[str, ...] = ()
    rollback: int = 0


Q4 = 4.5  # 32 numbers of 4 bits and a scale of 16
VARIANTS = (
    Variant("hybridge llm", "float32", "hybridge", Bits(), ("--kernels", "llm")),
    Variant("hybridge", "float32", "hybridge", Bits(), ("--kernels", "hybridge")),
    Variant("hybridge onnx", "float32", "hybridge", Bits(), ("--format", "onnx")),
    Variant("transformers eager", "float32", "eager", Bits()),
    Variant("llama.cpp F32", "float32", "llama", Bits(row=16), ("F32", "f16")),
    Variant("hybridge llm 8da4w", "int4", "hybridge", Bits(Q4, Q4), ("--kernels", "llm", *INT4)),
    Variant("hybridge 8da4w", "int4", "hybridge", Bits(Q4, Q4), ("--kernels", "hybridge", *INT4)),
    Variant("hybridge 8da4w int8 cache", "int4", "hybridge", Bits(Q4, Q4, 9), ("--kernels", "hybridge", *INT4, *INT8_CACHE)),
    Variant("llama.cpp Q4_0", "int4", "llama", Bits(Q4, Q4, 16), ("Q4_0", "f16")),
    Variant("llama.cpp Q4_0 q8_0 cache", "int4", "llama", Bits(Q4, Q4, 8.5), ("Q4_0", "q8_0")),
    Variant("llama.cpp Q4_0 rollback", "int4", "llama", Bits(Q4, Q4, 16), ("Q4_0", "f16"), rollback=8),
)
BASELINES = {"float32": "transformers eager", "int4": "llama.cpp Q4_0"}
GROUPS = tuple(BASELINES)


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
        """Return the samples of one cell, if it was measured."""
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
        """Return the row of a variant, if it was asked for."""
        return next((row for row in self.rows if row.variant == variant), None)

    def of_limit(self, row: Row, context: int, threads: int) -> float | None:
        """Return the time of reading alone in that of a decode: round by round, with the bandwidth of each; the median."""
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
    """Return the time of ``samples`` in that of ``whole``, medians."""
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
    """Return the runs of a file that ``save`` wrote."""
    return [Run.model_validate(run) for run in json.loads(path.read_text())]


NONE = "–"
BY_CONTEXT: tuple[Measure, ...] = ("decode", "verify", "commit")


def shape(run: Run) -> str:
    """One shape: what it ran on, a speed table for each number of threads and group, the costs, and what is missing."""
    parts = [f"## {run.shape}", machine(run)]
    for threads in run.threads:
        for group in dict.fromkeys(row.group for row in run.rows):
            rows = [row for row in run.rows if row.group == group]
            parts += [f"**{group}, {threads} {'thread' if threads == 1 else 'threads'}**", speeds(run, rows, group, threads)]
    parts += ["**Share of the bandwidth limit in decode**", limits(run), "**Files, memory, loading**", costs(run)]
    return "\n\n".join([*parts, *gaps(run)])


def machine(run: Run) -> str:
    """Return the machine and what memory gives."""
    rates = ", ".join(
        f"{median(rates) / 1e9:.1f} (best {max(rates) / 1e9:.1f}) GB/s with {n}"
        for n, rates in sorted(run.bandwidth.items())
        if rates
    )
    facts = "; ".join(f"{name} {text}" for name, text in run.machine.items())
    return f"{facts}. Measured read bandwidth by threads: {rates or NONE}."


def speeds(run: Run, rows: Sequence[Row], group: str, threads: int) -> str:
    """Tokens per second and how many times the baseline's; milliseconds of verify and commit."""
    head = [f"× is {BASELINES[group]}", *(f"decode at {context:,}, tokens/s" for context in run.contexts)]
    head += ["longest / shortest context, time", f"verify of {VERIFY}, ms", "in decodes", f"commit of {COMMIT}, ms"]
    head += [f"prefill of {PREFILL}, tokens/s"]
    base = run.row(BASELINES[group])
    return table(head, [[row.variant, *speed_cells(run, row, base, threads)] for row in rows if not row.failed])


def speed_cells(run: Run, row: Row, base: Row | None, threads: int) -> list[str]:
    """Return the cells of one engine."""
    first, last = run.contexts[0], run.contexts[-1]
    decode, verify, commit = (row.find(measure, first, threads) for measure in BY_CONTEXT)
    cells = [speed(row, base, "decode", context, threads) for context in run.contexts]
    cells += [number(share(row.find("decode", last, threads), decode)), milliseconds(verify), number(share(verify, decode))]
    return [*cells, milliseconds(commit), speed(row, base, "prefill", 0, threads)]


def speed(row: Row, base: Row | None, measure: Measure, context: int, threads: int) -> str:
    """Tokens per second, and how many times the baseline's."""
    ours = row.find(measure, context, threads)
    if ours is None:
        return NONE
    text = number((PREFILL if measure == "prefill" else 1) / ours.seconds)
    times = speedup(ours, base.find(measure, context, threads) if base and base is not row else None)
    return f"{text} ({number(times)}×)" if times else text


def milliseconds(samples: Samples | None) -> str:
    """Return the median."""
    return number(1000 * samples.seconds) if samples else NONE


def limits(run: Run) -> str:
    """Least time over measured time of decodes, in percent."""
    columns = [(threads, context) for threads in run.threads for context in run.contexts]
    head = ["", *(f"{threads} threads, {context:,}" for threads, context in columns)]
    return table(head, [[row.variant, *(limit(run, row, *column) for column in columns)] for row in run.rows if not row.failed])


def limit(run: Run, row: Row, threads: int, context: int) -> str:
    """One cell of it."""
    part = run.of_limit(row, context, threads)
    return f"{100 * part:.0f} %" if part else NONE


def costs(run: Run) -> str:
    """Files, export, loading and memory."""
    head = ["", "file, MB", "export, s", "export's peak, MB", "× checkpoint", "load to first logits, s", "resident, MB"]
    head += ["more than before loading, MB", "× file"]
    return table(head, [[row.variant, *cost_cells(run, row)] for row in run.rows if not row.failed])


def cost_cells(run: Run, row: Row) -> list[str]:
    """Return the cells of one engine."""
    grown = max(0, row.resident - row.bare)
    peak = row.export_memory / run.checkpoint_bytes if run.checkpoint_bytes else 0
    values: list[float] = [row.file_bytes / 1e6, row.export_seconds, row.export_memory / 1e6, peak, row.load_seconds]
    values += [row.resident / 1e6, grown / 1e6, grown / row.file_bytes if row.file_bytes else 0]
    return [number(value or None) for value in values]


def gaps(run: Run) -> list[str]:
    """Return what could not be measured, and why; the same reason once."""
    lines = [f"- {row.variant}: {row.failed}" for row in run.rows if row.failed]
    for row in run.rows:
        reasons: dict[str, list[str]] = {}
        for what, why in row.missing.items():
            reasons.setdefault(why, []).append(what)
        lines += [f"- {row.variant}: no {', '.join(whats)}: {why}" for why, whats in reasons.items()]
    return ["Not measured:\n\n" + "\n".join(lines)] if lines else []


def number(value: float | None) -> str:
    """Three digits that matter, or a dash."""
    if value is None:
        return NONE
    digits: Callable[[float], int] = lambda x: 0 if x >= 100 else 1 if x >= 10 else 2 if x >= 1 else 3  # noqa: E731
    return f"{value:,.{digits(abs(value))}f}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
