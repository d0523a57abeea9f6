"""Show the progress of exports and checks on a console: a spinner for a terminal, lines for a log, tables of validations."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from hybridge.export.progress import ExportProgress
from hybridge.export.report import ValidationReport
from hybridge.runtime.cli.console import table


class ConsoleProgress(ExportProgress):
    """Shows named steps of a long piece of work, and their seconds."""

    def __init__(self, console: Console) -> None:
        self.console = console

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Show ``what`` while the body runs, and its time once it has."""
        began = time.perf_counter()
        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        with Progress(*columns, console=self.console, transient=True) as progress:
            progress.add_task(what)
            yield
        self.console.print(f"[green]✓[/] {what} [dim]{time.perf_counter() - began:.1f} s[/]", highlight=False)

    def warn(self, text: str) -> None:
        """Print a line of its own."""
        self.console.print(f"[yellow]Warning:[/] {escape(text)}", highlight=False, soft_wrap=True)

    @contextmanager
    def counted(self, what: str) -> Iterator[Callable[[int, int], None]]:
        """Show a bar while the body runs, with an estimate of the remaining time."""
        columns = (
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
            TextColumn("[dim]left[/]"), TimeRemainingColumn(),
        )  # fmt: skip
        with Progress(*columns, console=self.console, transient=True) as progress:
            task = progress.add_task(what, total=None)
            yield lambda done, total: progress.update(task, completed=done, total=total)

    def validated(self, report: ValidationReport) -> None:
        """Print the table of the report."""
        print_report(report, self.console)


def print_report(report: ValidationReport, console: Console) -> None:
    """Print the table of a validation."""
    grid = table(f"Validation against the uncached eager model (seed {report.seed})", "", "value")
    for name, value in rows(report):
        grid.add_row(name, value)
    console.print(grid)
    if report.first_divergence is not None:
        first = report.first_divergence
        console.print(
            f"First divergence: program {first.program} of seed {report.seed}, at position {first.position}, "
            f"error {first.error:.2e}, after:\n  " + " · ".join(first.operations),
            highlight=False,
        )


def rows(report: ValidationReport) -> list[tuple[str, str]]:
    """Return the name and the value of each line of the table."""
    generation, texts, drift = report.generation, report.tokenizer, report.drift
    mark = "[green]passed[/]" if report.passed else "[bold red]FAILED[/]"
    kinds = ", ".join(f"{count} {name}" for name, count in report.operations.most_common())
    found = [
        ("reference's weights read by", report.reader),
        ("random operations", f"{report.operations.total()} ({kinds})"),
        ("logit vectors compared", f"{report.compared}"),
        ("worst error", f"{report.worst:.2e} = {report.worst_relative:.2e} of the largest logit"),
        ("mean error", f"{report.mean:.2e} = {report.mean_relative:.2e} of the largest logit"),
        ("tolerance", f"{report.tolerance:.0e} of the largest logit"),
        ("top-1 agreement", f"{report.top1_agreement:.4%}"),
        ("greedy = eager, plain", f"{generation.plain_matches} of {generation.prompts} prompts"),
        ("greedy = eager, speculative", f"{generation.speculative_matches} of {generation.prompts} prompts"),
    ]
    if report.decoded:
        bits = f"{report.decoded_equal} of {report.decoded} vectors are bit-identical"
        found.append(("logits, however read, and decodes", bits))
    if generation.drafted_prompts:
        counts = f"draft tokens: {generation.drafted_accepted} accepted, {generation.drafted_rejected} rejected"
        matches = f"{generation.drafted_matches} of {generation.drafted_prompts} prompts"
        found.append(("greedy = eager, own drafter", f"{matches} ({counts})"))
    counts = f"{generation.accepted} accepted, {generation.rejected} rejected, {generation.rollbacks} rollbacks"
    found.append(("tokens generated each way", f"{generation.tokens} ({generation.ties} ties; draft tokens: {counts})"))
    if (delegated := report.delegated) is not None:
        worst = f"worst error {delegated.worst_relative:.2e} of the largest logit (tolerance {delegated.tolerance:.0e})"
        found.append(("prompts read by the accelerator", f"{worst}, top-1 agreement {delegated.top1_agreement:.1%}"))
    if texts.texts:
        found.append(("texts with the checkpoint's tokens", f"{texts.equal} of {texts.texts}"))
    if drift is not None:
        divergence = f"KL divergence {drift.kl:.4f} nats, top-1 agreement {drift.top1_agreement:.1%}"
        found.append(("drift from the original", f"{divergence} ({drift.positions} positions)"))
    return [*found, ("result", mark)]


def plain_rows(report: ValidationReport) -> list[tuple[str, str]]:
    """Return the lines of the table without colours."""
    return [(name, Text.from_markup(value).plain) for name, value in rows(report)]
