"""The protocol of a target. A new one is a class with it, and a line in ``TARGETS`` of ``__main__.py``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Input:
    """One input as the child reads it, and what a person should read of it. good: to refuse it is wrong."""

    data: bytes
    text: str
    good: bool = False


class Target(Protocol):
    """Something that takes hostile input, in a child process that ``command`` starts.

    The child reads inputs from stdin, each behind its length (uint32, little-endian), and answers each with a line on stdout as
    soon as it is done: ``accepted``, ``refused: why``, or ``wrong: why`` for one that was not handled as it should have been.
    """

    name: str

    def prepare(self) -> None:
        """Build or make what the child needs; once."""

    def command(self) -> Sequence[str]:
        """Return what starts a child."""

    def environment(self) -> Mapping[str, str]:
        """Return the variables that a child needs besides this process's own."""

    def make(self, seed: int, index: int) -> Input:
        """Return input ``index`` of a seed: the same ones give the same input."""
