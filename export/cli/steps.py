"""Say what is being done and how long it took, on stderr: a spinner for a terminal, lines for a log."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

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

from hybridge.export.progress import ExportProgress

if TYPE_CHECKING:  # which needs PyTorch
    from hybridge.export.check.validate import ValidationReport


class ConsoleProgress(ExportProgress):
    """Named steps of a long piece of work, and their seconds."""

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
        """Show a bar while the body runs, and how long it will go on as far as its pace tells."""
        columns = (
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
            TextColumn("[dim]left[/]"), TimeRemainingColumn(),
        )  # fmt: skip
        with Progress(*columns, console=self.console, transient=True) as progress:
            task = progress.add_task(what, total=None)
            yield lambda done, total: progress.update(task, completed=done, total=total)

    def validated(self, report: ValidationReport) -> None:
        """Print the table of the report."""
        from hybridge.export.cli.validate import print_report

        print_report(report, self.console)
