"""Which tokens a session's state is the state of."""

from __future__ import annotations


class CommittedText:
    """tokens: committed so far; slots: those that each snapshot slot was filled with.

    A call is announced (``coming``) before it runs and acknowledged (``arrive``) after, because an interrupt may strike in
    between; ``settle`` then finds out by the program's own length.
    """

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.slots: dict[int, list[int]] = {}
        self._coming: tuple[int, list[int]] | None = None

    @property
    def unsettled(self) -> bool:
        """Whether a call was announced and neither acknowledged nor withdrawn."""
        return self._coming is not None

    def coming(self, base: int, tokens: list[int]) -> None:
        """The call that follows leaves the first ``base`` tokens, and then ``tokens``."""
        self._coming = (base, tokens)

    def arrive(self) -> None:
        """It happened."""
        assert self._coming is not None
        base, tokens = self._coming
        self.tokens[base:] = tokens
        self._coming = None

    def withdraw(self) -> None:
        """It was refused."""
        self._coming = None

    def settle(self, length: int) -> None:
        """It happened or not: the program now has ``length`` tokens."""
        assert self._coming is not None
        base, tokens = self._coming
        if length == base + len(tokens):
            self.arrive()
        self._coming = None
