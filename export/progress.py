"""Report the progress of long work: steps, counts and warnings, for a console or another program."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # commands that export nothing start without it
    from hybridge.export.report import ValidationReport


class ExportProgress:
    """Shows nothing. Derive a class and override the methods to show; an exception in one of them ends the work."""

    def step(self, what: str) -> AbstractContextManager[None]:
        """Return a context for the step ``what``."""
        return nullcontext()

    def warn(self, text: str) -> None:
        """Show a sentence that the user should read; the work continues."""

    @contextmanager
    def counted(self, what: str) -> Iterator[Callable[[int, int], None]]:
        """Return a context for the step ``what``, with a function that takes the number done and the total."""
        yield lambda done, total: None

    def validated(self, report: ValidationReport) -> None:
        """Show the report of a validation, passed or not."""
