"""What is put in order where a signal ends the process while something is being written.

An exception that a signal's handler raises comes up wherever Python happens to run. While PyTorch traces, that is often code
that C++ calls: there Python swallows it (a weakref's callback) or the process ends in std::terminate. So a command line that
writes does not raise one: it undoes what is registered here, and leaves at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

_undoing: list[Callable[[], None]] = []  # of the process, as its signals are


@contextmanager
def undone_at_signals(undo: Callable[[], None]) -> Iterator[None]:
    """Have ``undo`` called by whoever leaves at a signal during the body."""
    _undoing.append(undo)
    try:
        yield
    finally:
        _undoing.remove(undo)


def is_anything_unfinished() -> bool:
    """Return whether something is being written now."""
    return bool(_undoing)


def undo_unfinished() -> None:
    """Put in order what is being written; what the system does not let be removed stays for the next writer to remove."""
    for undo in _undoing:
        with suppress(OSError):
            undo()
