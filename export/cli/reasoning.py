"""A model's reasoning in the terminal: dim and on stderr, so that answers alone go to stdout."""

from __future__ import annotations

from rich.markup import escape

from hybridge.export.cli.common import err


class ShownReasoning:
    """Shows reasoning as it comes, and where it ends."""

    def __init__(self) -> None:
        self._open = False

    def show(self, piece: str) -> None:
        """Show what comes next of it."""
        err.print(escape(piece), style="dim", end="", highlight=False, soft_wrap=True)
        self._open = True

    def end(self) -> None:
        """Begin a new line for the answer, if there was any."""
        if self._open:
            err.print("\n")
        self._open = False
