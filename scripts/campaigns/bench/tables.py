"""The tables of a run as Markdown: speeds and ratios for every engine, context and number of threads, sizes, and limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from campaigns.bench.engine import COMMIT, PREFILL, VERIFY
from campaigns.bench.results import Measure, Row, Run, Samples, share, speedup
from campaigns.bench.variants import BASELINES

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
    """The machine and what memory gives."""
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
    """The cells of one engine."""
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
    """The median."""
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
    """The cells of one engine."""
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
