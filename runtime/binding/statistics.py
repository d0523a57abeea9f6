"""Count the work and the time of a generation; ``Trace`` also keeps every round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Origin = Literal["own", "draft", "forced"]
Phase = Literal["prefill", "draft", "verify", "commit", "decode"]
PHASES: tuple[Phase, ...] = ("commit", "prefill", "draft", "verify", "decode")
"""In the order of one step: what was accepted last is committed first."""


@dataclass(kw_only=True)
class GenerationStats:
    """Counts, and wall seconds by phase. new_seconds is the time of all new tokens after the first, which the prefill includes.

    The time of the tokens' consumer is not counted. forced: draft tokens that a grammar left no choice for, which count as
    proposed and accepted too.
    """

    prompt_tokens: int = 0
    new_tokens: int = 0
    proposed: int = 0
    accepted: int = 0
    verifies: int = 0
    decodes: int = 0
    rollbacks: int = 0
    forced: int = 0
    prefill_seconds: float = 0.0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    commit_seconds: float = 0.0
    decode_seconds: float = 0.0
    new_seconds: float = 0.0
    origin: Origin = "own"
    """Origin of the last yielded token: the model's own, a draft token, or one that a grammar forced."""
    spans: list[tuple[int, int, int]] = field(default_factory=list)
    """For each verified block: the index of its first draft token, and the numbers of accepted and rejected ones."""

    @property
    def acceptance_rate(self) -> float:
        """Return the share of the proposed tokens that were accepted; 0 if none were proposed."""
        return self.accepted / self.proposed if self.proposed else 0.0

    @property
    def mean_accepted_length(self) -> float:
        """Return the tokens that a verified block yields: the accepted draft tokens and one more; 0 without blocks."""
        return (self.accepted + self.verifies) / self.verifies if self.verifies else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Return new tokens after the first, per second."""
        return (self.new_tokens - 1) / self.new_seconds if self.new_seconds and self.new_tokens > 1 else 0.0

    def add_seconds(self, phase: Phase, seconds: float) -> None:
        """Add to the time of ``phase``."""
        name = f"{phase}_seconds"
        setattr(self, name, getattr(self, name) + seconds)

    def add_block(self, first: int, draft: Sequence[int], accepted: int, forced: bool) -> None:
        """Count a verified block: the index of its first draft token, its draft tokens, and how many were accepted."""
        self.spans.append((first, accepted, len(draft) - accepted))

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the spans, for JSON."""
        derived = ("acceptance_rate", "mean_accepted_length", "tokens_per_second")
        own = {name: value for name, value in asdict(self).items() if name not in ("spans", "origin")}
        return own | {name: getattr(self, name) for name in derived}


@dataclass(frozen=True)
class Draft:
    """A verified block: the index of its first draft token among the new tokens, its draft tokens, and how many were accepted.

    forced: a grammar left no choice for them.
    """

    first: int
    tokens: list[int]
    accepted: int
    forced: bool


@dataclass
class Round:
    """One round: its phases with their seconds, and the draft that it verified, if any."""

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
    """``GenerationStats`` with every round. It grows with the text, so it is for a single generation, not for a server."""

    def __init__(self) -> None:
        super().__init__()
        self.rounds: list[Round] = []

    def add_seconds(self, phase: Phase, seconds: float) -> None:
        """Also keep the phase in its round."""
        super().add_seconds(phase, seconds)
        if not seconds:
            return
        if not self.rounds or (phase != "commit" and self.rounds[-1].has_run):
            self.rounds.append(Round())
        self.rounds[-1].phases.append((phase, seconds))

    def add_block(self, first: int, draft: Sequence[int], accepted: int, forced: bool) -> None:
        """Also keep the draft in its round."""
        super().add_block(first, draft, accepted, forced)
        self.rounds[-1].draft = Draft(first, list(draft), accepted, forced)
