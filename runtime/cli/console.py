"""Parts that all commands share: the two consoles, and what is printed on them."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hybridge.cache.errors import UsageError

# A pipe has no width; 80 columns would cut names.
out = Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else 140)
err = Console(stderr=True)


def print_json(content: Any) -> None:
    """Print one JSON document on stdout, whatever the terminal."""
    sys.stdout.write(json.dumps(content, indent=2) + "\n")


def table(title: str, *columns: str) -> Table:
    """Return a table whose first column is text and whose others are aligned right."""
    grid = Table(title=title, title_justify="left", title_style="bold")
    for i, column in enumerate(columns):
        grid.add_column(column, justify="left" if i == 0 else "right")
    return grid


def megabytes(size: int) -> str:
    """Return a size such as 1.2 MB."""
    return f"{size / 1e6:.2f} MB"


def numbers(text: str, option: str, example: str, lowest: int) -> list[int]:
    """Return the different numbers of ``text``, ascending, at least one; wrong usage of ``option`` if it is something else."""
    parts = [part.strip() for part in text.split(",")]
    expected = f"expected different numbers of {lowest} or more with commas between them, such as {example}."
    if not all(part.isascii() and part.isdigit() and int(part) >= lowest for part in parts):
        raise typer.BadParameter(f"{text!r}: {expected}", param_hint=f"'{option}'")
    if len({int(part) for part in parts}) < len(parts):
        raise typer.BadParameter(f"{text!r} has a number twice: {expected}", param_hint=f"'{option}'")
    return sorted(map(int, parts))


def check_writable_file(path: Path) -> None:
    """Raises UsageError where ``path`` cannot become a file, before the work that would be lost."""
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise UsageError(f"{path} cannot be written: it is a folder, or its folder does not exist.")


def write_json(path: Path, content: Any) -> None:
    """Write one JSON document to a file. Raises OSError."""
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


# A model's reasoning in the terminal: dim and on stderr, so that answers alone go to stdout.


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
