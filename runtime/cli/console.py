"""Print on the two consoles, and end the process: exit codes, signals, and the tables that several commands share."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import signal
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from hybridge.errors import HybridgeError, UsageError
from hybridge.imports import needs_export
from hybridge.runtime.files import file_target, is_anything_unfinished, undo_unfinished, write_output

if TYPE_CHECKING:  # numpy takes long to start
    from hybridge.runtime.binding.session import Session
    from hybridge.runtime.binding.statistics import GenerationStats

# A pipe has no width; 80 columns would cut names.
out = Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else 140)
err = Console(stderr=True)

SHOW_CURSOR = b"\x1b[?25h"
INTERRUPTED = b"\nInterrupted.\n"
CONTROLS = {each: "�" for each in (*range(32), *range(127, 160)) if each not in (9, 10)}
LEAST_TOKENS, LEAST_SECONDS = 64, 0.05
"""Fewest new tokens, and the least time of them, whose speed is compared: in a shorter text a single slow call decides."""


def print_json(content: Any) -> None:
    """Print a JSON document on stdout, independent of the terminal."""
    sys.stdout.write(json.dumps(content, indent=2) + "\n")


def write_json(path: Path, content: Any) -> None:
    """Write a JSON document to a file. Raises OutputError."""
    write_output(path, (json.dumps(content, indent=2) + "\n").encode())


def table(title: str, *columns: str) -> Table:
    """Return a table whose first column is aligned left and whose others are aligned right; without names no header."""
    grid = Table(title=title, title_justify="left", title_style="bold", show_header=any(columns))
    for i, column in enumerate(columns):
        grid.add_column(column, justify="left" if i == 0 else "right")
    return grid


def megabytes(size: int) -> str:
    """Return a size such as 1.2 MB."""
    return f"{size / 1e6:.2f} MB"


def numbers(text: str, option: str, example: str, lowest: int) -> list[int]:
    """Return the numbers of ``text``, ascending. Raises BadParameter for ``option`` unless they are different and valid."""
    parts = [part.strip() for part in text.split(",")]
    expected = f"expected different numbers of {lowest} or more with commas between them, such as {example}."
    if not all(part.isascii() and part.isdigit() and int(part) >= lowest for part in parts):
        raise typer.BadParameter(f"{text!r}: {expected}", param_hint=f"'{option}'")
    if len({int(part) for part in parts}) < len(parts):
        raise typer.BadParameter(f"{text!r} has a number twice: {expected}", param_hint=f"'{option}'")
    return sorted(map(int, parts))


def check_writable_file(path: Path) -> None:
    """Raise UsageError if ``path`` cannot become a file, before the work that would be lost."""
    try:
        folder = file_target(path).absolute().parent
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}.") from None
    if not folder.is_dir():
        raise UsageError(f"{path} cannot be written: its folder does not exist.")


def printable(text: str) -> str:
    """Return a text whose control characters cannot command the terminal."""
    return text.translate(CONTROLS)


class WordWrap:
    """Breaks a text between words where the terminal's line ends, as its pieces come."""

    def __init__(self) -> None:
        self._column = 0
        self._word = ""

    def push(self, piece: str) -> str:
        """Return what can be written of a piece; its last word waits for its end."""
        *words, self._word = re.split(r"(?<=[ \n])|(?=[ \n])", self._word + printable(piece))
        return "".join(map(self._placed, words))

    def finish(self) -> str:
        """Return the rest."""
        rest, self._word = self._placed(self._word), ""
        return rest

    def _placed(self, word: str) -> str:
        if word == "\n":
            self._column = 0
            return word
        width, cells = shutil.get_terminal_size().columns, Text(word).cell_len
        if self._column + cells <= width:
            self._column += cells
            return word
        if word.isspace():
            self._column = 0
            return "\n"
        before, self._column = "\n" if self._column else "", cells % width
        return before + word


class ShownReasoning:
    """Shows a model's reasoning as it comes: dim and on stderr, so that only answers go to stdout."""

    def __init__(self) -> None:
        self._open = False
        self._wrap = WordWrap()

    def show(self, piece: str) -> None:
        """Show the next piece."""
        self._print(self._wrap.push(piece) if err.is_terminal else piece)
        self._open = True

    def end(self) -> None:
        """Begin a new line for the answer if reasoning was shown."""
        if self._open:
            self._print(self._wrap.finish())
            err.print("\n")
        self._open, self._wrap = False, WordWrap()

    def _print(self, text: str) -> None:
        err.print(escape(text), style="dim", end="", highlight=False, soft_wrap=True)


def note_unused_delegate(session: Session) -> None:
    """Say on stderr if the accelerator that an artifact was exported for does not read its prompts."""
    read = session.prompts_read
    if read is not None and read.reason:
        err.print(f"[yellow]{read.delegate} is not used, the CPU reads everything:[/] {escape(read.reason)}", highlight=False)


def show_calls(calls: Iterable[Mapping[str, Any]]) -> None:
    """Show calls of tools, as messages have them, dim and on stderr."""
    for call in calls:
        arguments = call["function"]["arguments"]
        written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        err.print(escape(f"[{call['function']['name']} {written}]"), style="dim", highlight=False, soft_wrap=True)


# Statistics of a generation


@dataclass(frozen=True)
class PlainComparison:
    """A generation beside plain decoding, measured in turns. plain_seconds: of a token."""

    plain_seconds: float
    speed_up: float


def stats_table(stats: GenerationStats, plain: PlainComparison | None = None) -> Table:
    """Return a table of counts, times and speed of a generation. plain: beside plain decoding, if that was measured."""
    grid = table("Generation", "", "")
    for name, value in stats_rows(stats, plain):
        grid.add_row(name, value)
    return grid


def stats_rows(stats: GenerationStats, plain: PlainComparison | None) -> Iterator[tuple[str, str]]:
    """Yield the names and values of that table."""
    yield "prompt", f"{stats.prompt_tokens} tokens in {stats.prefill_seconds:.3f} s"
    yield "new", f"{stats.new_tokens} tokens, {stats.tokens_per_second:.0f} tokens/s"
    yield "draft tokens", f"{stats.proposed}, accepted {stats.accepted} ({stats.acceptance_rate:.0%})"
    yield "mean accepted length", f"{stats.mean_accepted_length:.2f} tokens a block"
    yield "calls", f"{stats.verifies} verifies, {stats.decodes} decodes, {stats.rollbacks} rollbacks"
    for phase in ("draft", "verify", "commit", "decode"):
        seconds = getattr(stats, f"{phase}_seconds")
        yield phase, f"{seconds:.3f} s, {seconds / stats.new_seconds if stats.new_seconds else 0:.0%}"
    if plain is not None:
        yield "speed-up over plain decoding", f"{plain.speed_up:.2f}× ({1 / plain.plain_seconds:.0f} tokens/s)"


# The process


def run_and_exit(command: Callable[[], object]) -> None:
    """Run ``command`` and exit: 0 for success, 1 for failed work, 2 for wrong usage, 130 for Ctrl-C, 143 for SIGTERM.

    Call it on the main thread: only this one may handle signals.
    """
    # Silence import-time warnings of third-party libraries.
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    name = " ".join(["hybridge", *[word for word in sys.argv[1:] if not word.startswith("-")][:1]])
    try:
        with _exiting_at(signal.SIGTERM), _exiting_at(signal.SIGINT), needs_export(name):
            command()
    except HybridgeError as error:
        _fail(str(error), error.exit_code)
    except BrokenPipeError:
        # Who read the output has enough of it; what is buffered has nowhere to go at the exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(1)
    except OSError as error:
        _fail(f"{error.filename or 'the system'}: {error.strerror or error}.", 1)
    except KeyboardInterrupt:
        err.print("[bold red]Interrupted.[/]")
        sys.exit(130)


def _fail(message: str, exit_code: int) -> None:
    err.print("[bold red]Error:[/]", escape(message), highlight=False, soft_wrap=True)
    sys.exit(exit_code)


@contextmanager
def _exiting_at(signal_number: signal.Signals) -> Iterator[None]:
    """Exit at a signal: by an exception, or directly while a file is being written (see runtime/files.py)."""
    before = signal.getsignal(signal_number)
    if before is signal.SIG_IGN:  # as nohup and a shell's background jobs set it
        yield
        return
    signal.signal(signal_number, _exit)
    try:
        yield
    finally:
        signal.signal(signal_number, before)


def _exit(number: int, frame: FrameType | None) -> None:
    if is_anything_unfinished():
        undo_unfinished()
        os.write(2, SHOW_CURSOR * err.is_terminal + INTERRUPTED)  # no stream: this handler may have interrupted one
        os._exit(128 + number)
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    sys.exit(128 + number)
