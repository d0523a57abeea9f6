"""Show an export on one line that knows how long it takes, by how long earlier exports on this machine took."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.text import Text

from hybridge.export.progress import ExportProgress
from hybridge.models.kept import KeptModel, Seconds

OF_WEIGHTS = ("Reading", "Packing", "Writing")
"""Beginnings of the names of steps that take longer for more weights; the others depend on the number and kinds of layers."""
USUAL_SECONDS, USUAL_SECONDS_A_GB = 27.0, 39.0
"""Of a first export: on two idle cores of a server SmolLM2 (98 MB) took 31 s, which are mostly the graph's."""
LEAST_SEEN = 3.0
"""Expected seconds of finished steps from which their true ones say how fast this machine is now."""


@dataclass(frozen=True)
class Expected:
    """How long an export is expected to take. steps: in their order; none if this machine has not exported yet."""

    seconds: float
    steps: Sequence[Seconds] = ()

    def left(self, done: Sequence[Seconds], current: str | None, elapsed: float, total: float) -> float:
        """Return the seconds that are left.

        Args:
            done: steps and how long they took.
            current: the step that runs, and None between two.
            elapsed: seconds since it began.
            total: seconds since the export began.
        """
        if not self.steps:
            return max(0.0, self.seconds - total)
        expected, names = dict(self.steps), {name for name, _ in done}
        seen = sum(expected.get(name, 0.0) for name in names)
        pace = sum(seconds for _, seconds in done) / seen if seen > LEAST_SEEN else 1.0
        left = sum(seconds for name, seconds in self.steps if name not in names and name != current) * pace
        return left + (max(0.0, expected.get(current, 0.0) * pace - elapsed) if current else 0.0)


def expected(models: Sequence[KeptModel], size: int) -> Expected:
    """Return how long the export of a checkpoint of ``size`` bytes will take, by the kept model of the nearest size."""
    entries = [each.entry for each in models if each.entry is not None and each.entry.steps and each.entry.source_bytes > 0]
    if not entries:
        return Expected(USUAL_SECONDS + USUAL_SECONDS_A_GB * size / 1e9)
    nearest = min(entries, key=lambda entry: abs(math.log(max(size, 1) / entry.source_bytes)))
    times = size / nearest.source_bytes
    steps = [(name, seconds * (times if name.startswith(OF_WEIGHTS) else 1.0)) for name, seconds in nearest.steps]
    return Expected(sum(seconds for _, seconds in steps), steps)


class ExportLine(ExportProgress):
    """Shows an export as one line, which moves on a terminal. Use it as a context. steps: those that are done."""

    def __init__(self, console: Console | None, name: str, expected: Expected) -> None:
        """Show nothing yet. console: None for silence; name: of the model."""
        self.console, self.name, self.expected = console, name, expected
        self.steps: list[Seconds] = []
        self._current: str | None = None
        self._step_began = self._began = time.perf_counter()
        self._live: Live | None = None

    def __enter__(self) -> ExportLine:
        self._began = time.perf_counter()
        if self.console is not None and self.console.is_terminal:
            self._live = Live(
                get_renderable=self._line, console=self.console, transient=True, refresh_per_second=4, redirect_stdout=False
            )
            self._live.start()
        elif self.console is not None:
            about = "perhaps " * (not self.expected.steps) + duration(self.expected.seconds)
            self._print(f"Exporting {escape(self.name)}, which takes {about} this once.")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()
            if kind is None:
                took = time.perf_counter() - self._began
                self._print(f"[dim]{escape(self.name)} was exported in {took:.0f} s; the next time it opens at once.[/]")

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Show ``what`` while the body runs, and keep how long it took."""
        self._current, self._step_began = what, time.perf_counter()
        try:
            yield
        finally:
            self.steps.append((what, round(time.perf_counter() - self._step_began, 3)))
            self._current = None

    @contextmanager
    def counted(self, what: str) -> Iterator[Callable[[int, int], None]]:
        """Show ``what`` in the line, or in a line of its own if there is none, as while a file is packed."""
        with self.step(what):
            if self._live is not None or self.console is None or not self.console.is_terminal:
                yield lambda done, total: None
                return
            with self.console.status(what) as status:
                yield lambda done, total: status.update(f"{what}: {done} of {total}")

    def warn(self, text: str) -> None:
        """Print a line of its own."""
        self._print(f"[yellow]Warning:[/] {escape(text)}")

    def wait(self) -> None:
        """Say that another process exports the same model."""
        self._print(f"Another process is exporting {escape(self.name)}; waiting for it.")

    def _print(self, text: str) -> None:
        if self.console is not None:
            self.console.print(text, highlight=False, soft_wrap=True)

    def _line(self) -> Text:
        """Return the line of this moment."""
        now = time.perf_counter()
        left = self.expected.left(self.steps, self._current, now - self._step_began, now - self._began)
        if left > 0:
            rest = ("about " if self.expected.steps else "perhaps ") + duration(left) + " left"
        else:
            rest = "longer than expected"
        what = f"Exporting {self.name} this once: {rest}"
        return Text(f"{what}  ({self._current})" if self._current else what, overflow="ellipsis", no_wrap=True)


def duration(seconds: float) -> str:
    """Return a time as a person says it, such as 40 s or 3 min; at most five seconds are pretended to be known."""
    if seconds < 90:
        return f"{max(5, 5 * round(seconds / 5))} s" if seconds > 10 else f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min"
