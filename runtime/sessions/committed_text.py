"""The tokens that a session's state is the state of, and the changes that calls make to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields

from hybridge.runtime.sessions.checkpoint import Lineage


@dataclass(frozen=True, kw_only=True)
class Change:
    """What a text becomes by a call: the first ``base`` tokens stay, and ``tokens`` follow them.

    staged: the verified block that then waits for a commit; slot: the snapshot slot that then keeps the text, if any. back_to:
    where the text goes back, how many tokens have the rows by position that they had.
    """

    base: int
    tokens: Sequence[int] = ()
    staged: Sequence[int] = ()
    slot: int | None = None
    back_to: int | None = None

    @property
    def length(self) -> int:
        """Tokens of the text afterwards."""
        return self.base + len(self.tokens)


@dataclass
class CommittedText:
    """tokens: committed so far; slots: those that each snapshot slot was filled with; staged: those that wait for a commit.

    note: what was noted in the state that was loaded last. lineage: the checkpoints' rows that the state has. Both methods may
    be interrupted and called again.
    """

    tokens: list[int] = field(default_factory=list)
    slots: dict[int, list[int]] = field(default_factory=dict)
    staged: list[int] = field(default_factory=list)
    note: str = ""
    lineage: Lineage = field(default_factory=Lineage)

    def take(self, change: Change) -> None:
        """Make the change."""
        if change.back_to is not None:
            self.lineage = self.lineage.until(change.back_to)
        self.tokens[change.base :] = change.tokens
        if change.slot is not None:
            self.slots[change.slot] = self.tokens.copy()
        self.staged = list(change.staged)

    def become(self, other: CommittedText) -> None:
        """Be ``other`` from now on, which must not be used any more."""
        for each in fields(self):
            setattr(self, each.name, getattr(other, each.name))
