"""What a long piece of work tells of itself while it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # which needs PyTorch
    from hybridge.export.check.validate import ValidationReport


class ExportProgress:
    """Shows nothing. Derive from it and override what you want to show; a method that raises ends the work."""

    def step(self, what: str) -> AbstractContextManager[None]:
        """Return a context in which ``what`` is being done."""
        return nullcontext()

    def warn(self, text: str) -> None:
        """Take a sentence that the user should read; the work goes on."""

    @contextmanager
    def counted(self, what: str) -> Iterator[Callable[[int, int], None]]:
        """Return a context in which ``what`` is being done, whose function takes how much is done and how much there is."""
        yield lambda done, total: None

    def validated(self, report: ValidationReport) -> None:
        """Take the report of a validation, passed or not."""
