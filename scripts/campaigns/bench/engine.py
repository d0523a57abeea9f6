"""The interface of every measured runtime. Engines run in processes of their own, some with other packages: no torch here."""

from __future__ import annotations

from typing import Protocol

VERIFY, COMMIT, PREFILL, ROOM = 8, 4, 512, 1024
"""Tokens of a verify, of a commit and of a prefill; positions beyond the longest context that every engine is given."""


class Engine(Protocol):
    """One runtime with one model. What it cannot do raises NotImplementedError with the reason."""

    def load(self) -> None:
        """From the file to the first logits; imports are done before."""

    def set_threads(self, count: int) -> None:
        """Compute on so many from now on."""

    def fill(self, context: int) -> None:
        """A state of ``context`` tokens, whatever they are. Called again and again, to go back to that length."""

    def decode(self) -> None:
        """One token and its logits."""

    def verify(self, count: int) -> None:
        """The logits of ``count`` tokens after the context."""

    def commit(self, count: int) -> None:
        """Accept ``count`` tokens of the verify right before."""

    def prefill(self, count: int) -> None:
        """``count`` tokens from an empty state, logits of the last."""


def tokens(count: int, vocabulary: int) -> list[int]:
    """The same every time, spread over the vocabulary."""
    return [(7919 * (i + 1)) % vocabulary for i in range(count)]
