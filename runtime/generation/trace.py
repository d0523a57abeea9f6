"""Statistics of a generation that also keep what happened when: each draft, and each phase with its time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from hybridge.runtime.generation.stats import GenerationStats, Phase


@dataclass(frozen=True)
class Draft:
    """A verified block: which new token its first draft token stands for, its draft tokens, and how many were accepted.

    forced: they were those that a grammar leaves no choice for.
    """

    first: int
    tokens: list[int]
    accepted: int
    forced: bool


@dataclass
class Round:
    """One round: the phases that it went through with their seconds, and its draft where it verified one."""

    phases: list[tuple[Phase, float]] = field(default_factory=list)
    draft: Draft | None = None

    @property
    def seconds(self) -> float:
        """Return the time of all phases."""
        return sum(seconds for _, seconds in self.phases)

    @property
    def has_run(self) -> bool:
        """Return whether the model ran already: whatever drafts or runs next is another round."""
        return any(phase in ("prefill", "verify", "decode") for phase, _ in self.phases)


class Trace(GenerationStats):
    """``GenerationStats`` with every round. It grows with the text: for looking at one generation, not for a server."""

    def __init__(self) -> None:
        super().__init__()
        self.rounds: list[Round] = []
        self._drafted: list[int] = []

    @contextmanager
    def timed(self, phase: Phase) -> Iterator[None]:
        """Also keep the phase in its round."""
        before = getattr(self, f"{phase}_seconds")
        with super().timed(phase):
            yield
        if not self.rounds or (phase != "commit" and self.rounds[-1].has_run):
            self.rounds.append(Round())
        self.rounds[-1].phases.append((phase, getattr(self, f"{phase}_seconds") - before))

    def note_draft(self, tokens: Sequence[int]) -> None:
        """Keep the tokens until they are counted."""
        self._drafted = list(tokens)

    def count_block(self, first: int, accepted: int, proposed: int, forced: bool) -> None:
        """Also keep the draft in its round."""
        super().count_block(first, accepted, proposed, forced)
        self.rounds[-1].draft = Draft(first, self._drafted, accepted, forced)
