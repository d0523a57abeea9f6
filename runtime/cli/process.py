"""Run a command as a process: what its exit code is, and what a signal does to it."""

from __future__ import annotations

import logging
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from rich.markup import escape

from hybridge.cache.errors import HybridgeError
from hybridge.cache.imports import needs_export
from hybridge.runtime.cli.console import err
from hybridge.runtime.files import is_anything_unfinished, undo_unfinished

SHOW_CURSOR = b"\x1b[?25h"
INTERRUPTED = b"\nInterrupted.\n"


def fail(message: str, exit_code: int) -> None:
    """Say what went wrong and leave; brackets in it are no markup."""
    err.print("[bold red]Error:[/]", escape(message), highlight=False, soft_wrap=True)
    sys.exit(exit_code)


def ended(command: Callable[[], object]) -> None:
    """Run ``command`` and leave: exit code 0 for done, 1 for failed work, 2 for wrong usage, 130 for Ctrl-C, 143 for SIGTERM.

    Of the main thread only: no other may say what a signal does.
    """
    # What libraries warn of at import is not for the people at this terminal.
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    try:
        with _leaving_at(signal.SIGTERM), _leaving_at(signal.SIGINT), needs_export(_asked()):
            command()
    except HybridgeError as error:
        fail(str(error), error.exit_code)
    except OSError as error:
        fail(f"{error.filename or 'the system'}: {error.strerror or error}.", 1)
    except KeyboardInterrupt:
        err.print("[bold red]Interrupted.[/]")
        sys.exit(130)


def _asked() -> str:
    """Return the command that this process was asked for, such as ``hybridge export``."""
    return " ".join(["hybridge", *[word for word in sys.argv[1:] if not word.startswith("-")][:1]])


@contextmanager
def _leaving_at(signal_number: signal.Signals) -> Iterator[None]:
    """Have a signal leave: by an exception, but without one where something is being written (runtime/files.py)."""
    before = signal.getsignal(signal_number)
    if before is signal.SIG_IGN:  # so nohup and a shell's background jobs want it
        yield
        return
    signal.signal(signal_number, _leave)
    try:
        yield
    finally:
        signal.signal(signal_number, before)


def _leave(number: int, frame: FrameType | None) -> None:
    if is_anything_unfinished():
        undo_unfinished()
        os.write(2, SHOW_CURSOR * err.is_terminal + INTERRUPTED)  # no stream, as one may be at work below this handler
        os._exit(128 + number)
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    sys.exit(128 + number)
