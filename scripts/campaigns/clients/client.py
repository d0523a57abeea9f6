"""The interface that every client is driven through, and a row of the table."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Literal, Protocol

Ends = Literal["before", "behind"]
"""Where a client's text ends after a generation: before the last new token, which nobody has read yet, or behind it."""


class ClientError(Exception):
    """A client cannot be set up on this machine, or gave up; the message says why."""


class Client(Protocol):
    """One text that grows by turns."""

    def generate(self, tokens: list[int], count: int) -> list[int]:
        """Return at most ``count`` greedy tokens behind ``tokens``, which continue the text."""

    def reset(self) -> None:
        """Start an empty text."""


@dataclass(frozen=True)
class Row:
    """A client by name; ``start`` may leave what has to be ended in the stack. turns is None where it has no second turn."""

    name: str
    start: Callable[[ExitStack], Client]
    turns: Ends | None = "before"


@dataclass(frozen=True)
class Functions:
    """A client of two functions."""

    generate: Callable[[list[int], int], list[int]]
    reset: Callable[[], object]
