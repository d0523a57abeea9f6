"""The command line. Results go to stdout, everything for people to stderr."""

from __future__ import annotations

import logging
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from rich.markup import escape

from hybridge.cache.errors import HybridgeError
from hybridge.export.cli import bench, chat, demo, evaluate, export, inspect, kernels, native, run, serve, validate
from hybridge.export.cli.common import app, err

__all__ = [
    "app",
    "bench",
    "chat",
    "demo",
    "ended",
    "evaluate",
    "export",
    "fail",
    "inspect",
    "kernels",
    "main",
    "native",
    "run",
    "serve",
    "validate",
]


def fail(message: str, exit_code: int) -> None:
    """Say what went wrong and leave; brackets in it are no markup."""
    err.print("[bold red]Error:[/]", escape(message), highlight=False, soft_wrap=True)
    sys.exit(exit_code)


def main() -> None:
    """Run the command line."""
    ended(app)


def ended(command: Callable[[], object]) -> None:
    """Run ``command`` and leave: exit code 0 for done, 1 for failed work, 2 for wrong usage, 130 for Ctrl-C, 143 for SIGTERM.

    Of the main thread only: no other may say what a signal does.
    """
    # What libraries warn of at import is not for the people at this terminal.
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    try:
        with _leaving_at_sigterm():
            command()
    except HybridgeError as error:
        fail(str(error), error.exit_code)
    except OSError as error:
        fail(f"{error.filename or 'the system'}: {error.strerror or error}.", 1)
    except KeyboardInterrupt:
        err.print("[bold red]Interrupted.[/]")
        sys.exit(130)


@contextmanager
def _leaving_at_sigterm() -> Iterator[None]:
    """Make SIGTERM an exception, so that half-written folders are cleaned up."""

    def leave(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
