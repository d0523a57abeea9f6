"""Say what is being done and how long it took, on stderr: a spinner for a terminal, lines for a log."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


class Steps:
    """Named steps of a long piece of work, and their seconds."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.seconds: dict[str, float] = {}

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Show ``what`` while the body runs, and its time once it has."""
        began = time.perf_counter()
        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        with Progress(*columns, console=self.console, transient=True) as progress:
            progress.add_task(what)
            yield
        self.seconds[what] = time.perf_counter() - began
        self.console.print(f"[green]✓[/] {what} [dim]{self.seconds[what]:.1f} s[/]", highlight=False)

    def say(self, text: str) -> None:
        """A line of its own."""
        self.console.print(text, highlight=False)

    def note(self, text: str) -> None:
        """What people should know of their files, whole and without markup."""
        self.console.print("[yellow]Note:[/]", escape(text), highlight=False, soft_wrap=True)
