"""The targets of hybridge, and what a run says of them. Ratios within one run, the worst of the numbers of threads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from campaigns.bench.results import Measure, Row, Run, Samples, share, speedup
from campaigns.bench.tables import NONE, number, table

OURS, OURS_INT8, OURS_FLOAT = "hybridge 8da4w", "hybridge 8da4w int8 cache", "hybridge"
LLAMA, EAGER = "llama.cpp Q4_0", "transformers eager"


@dataclass(frozen=True)
class Target:
    """A figure to reach: at least, or at most. value is None where the run does not have it; threads 0 if it has none."""

    what: str
    bound: float
    at_least: bool
    value: Callable[[Run, int], float | None]
    shapes: tuple[str, ...] = ("qwen3.5-0.8b",)
    threaded: bool = True


def section(run: Run) -> str:
    """A table, empty where nothing was set for the shape."""
    mine = [target for target in TARGETS if run.shape in target.shapes]
    head = ["what", "target", *(f"{n} {'thread' if n == 1 else 'threads'}" for n in run.threads)]
    rows = [[target.what, f"{'≥' if target.at_least else '≤'} {target.bound:g}", *cells(target, run)] for target in mine]
    return f"**Targets**\n\n{table(head, rows)}" if rows else ""


def cells(target: Target, run: Run) -> list[str]:
    """The value for each number of threads; bold where it is missed."""
    values = [target.value(run, threads) for threads in run.threads]
    return [judged(target, value) for value in (values if target.threaded else [*values[:1], *[None] * (len(values) - 1)])]


def judged(target: Target, value: float | None) -> str:
    """As text."""
    if value is None:
        return NONE
    reached = value >= target.bound if target.at_least else value <= target.bound
    return number(value) if reached else f"**{number(value)}**"


def found(run: Run, variant: str, measure: Measure, threads: int, context: int | None = None) -> Samples | None:
    """The samples of a variant, at the shortest context."""
    row = run.row(variant)
    return row.find(measure, run.contexts[0] if context is None else context, threads) if row else None


def faster(ours: str, theirs: str, measure: Measure) -> Callable[[Run, int], float | None]:
    """Return how many times as fast one is as the other."""
    context = 0 if measure == "prefill" else None
    return lambda run, n: speedup(found(run, ours, measure, n, context), found(run, theirs, measure, n, context))


def within(ours: str, part: Measure, whole: Measure) -> Callable[[Run, int], float | None]:
    """The time of one call in that of another."""
    return lambda run, n: share(found(run, ours, part, n), found(run, ours, whole, n))


def of_row(ours: str, part: Callable[[Row], float], whole: Callable[[Run, Row], float]) -> Callable[[Run, int], float | None]:
    """A quotient of what does not depend on threads; None where either is not known."""

    def of(run: Run, threads: int) -> float | None:
        row = run.row(ours)
        known = row and not row.failed and part(row) and whole(run, row)
        return part(row) / whole(run, row) if row and known else None

    return of


def of_limit(run: Run, threads: int) -> float | None:
    """Least time over measured time."""
    row = run.row(OURS)
    return run.of_limit(row, run.contexts[0], threads) if row else None


def by_context(run: Run, threads: int) -> float | None:
    """The time at the longest context in that at the shortest."""
    return share(found(run, OURS_INT8, "decode", threads, run.contexts[-1]), found(run, OURS_INT8, "decode", threads))


def alone(run: Run, row: Row) -> float:
    """For figures that are no quotient."""
    return 1.0


PEAK = of_row(OURS, lambda row: row.export_memory, lambda run, row: run.checkpoint_bytes)
SIZE = of_row(OURS, lambda row: row.file_bytes, lambda run, row: row.weight_bytes)
RESIDENT = of_row(OURS, lambda row: row.resident - row.bare, lambda run, row: row.file_bytes)
TARGETS = (
    Target("decode, 8da4w, × llama.cpp Q4_0", 1.4, True, faster(OURS, LLAMA, "decode")),
    Target("decode, 8da4w, of the bandwidth limit", 0.75, True, of_limit),
    Target("verify of 8, in decodes", 1.6, False, within(OURS, "verify", "decode")),
    Target("commit of 4, in verifies of 8", 0.03, False, within(OURS, "commit", "verify")),
    Target("prefill, 8da4w, × llama.cpp Q4_0", 1.5, True, faster(OURS, LLAMA, "prefill")),
    Target("decode, longest context in shortest, int8 cache", 1.4, False, by_context),
    Target("float32 decode, × transformers eager", 1.4, True, faster(OURS_FLOAT, EAGER, "decode")),
    Target("float32 decode, × transformers eager", 8, True, faster(OURS_FLOAT, EAGER, "decode"), ("embedded",)),
    Target("export, 8da4w, s", 240, False, of_row(OURS, lambda row: row.export_seconds, alone), threaded=False),
    Target("its peak memory, × checkpoint in float32", 2.2, False, PEAK, threaded=False),
    Target("`.pte`, × quantized weights", 1.03, False, SIZE, threaded=False),
    Target("load to first logits, s", 1.5, False, of_row(OURS, lambda row: row.load_seconds, alone), threaded=False),
    Target("resident after load, × file", 1.3, False, RESIDENT, threaded=False),
)
