"""Count what a generation did, and where its time went."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from time import perf_counter
from typing import Any, Literal

Origin = Literal["own", "draft", "forced"]
Phase = Literal["prefill", "draft", "verify", "commit", "decode"]


@dataclass(kw_only=True)
class GenerationStats:
    """Counts, and wall seconds by phase. new_seconds is the time of all new tokens after the first, which the prefill pays for.

    Time that the consumer of the tokens takes is in none of them. forced: draft tokens that a grammar left no choice for, which
    are counted as proposed and accepted too.
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
    """Where the token comes from that was yielded last: the model's own, a draft token, or one that a grammar forced."""
    spans: list[tuple[int, int, int]] = field(default_factory=list)
    """For each verified block: which new token its first draft token stands for, draft tokens accepted, rejected."""

    @property
    def acceptance_rate(self) -> float:
        """Return the share of the proposed tokens that were accepted; 0 if none were proposed."""
        return self.accepted / self.proposed if self.proposed else 0.0

    @property
    def mean_accepted_length(self) -> float:
        """Return how many tokens a verified block yields: the accepted draft tokens and one more; 0 without blocks."""
        return (self.accepted + self.verifies) / self.verifies if self.verifies else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Return new tokens after the first, per second."""
        return (self.new_tokens - 1) / self.new_seconds if self.new_seconds and self.new_tokens > 1 else 0.0

    @contextmanager
    def timed(self, phase: Phase) -> Iterator[None]:
        """Add the time of the body to ``phase``."""
        began = perf_counter()
        try:
            yield
        finally:
            name = f"{phase}_seconds"
            setattr(self, name, getattr(self, name) + perf_counter() - began)

    def note_draft(self, tokens: Sequence[int]) -> None:
        """Take the draft tokens that are verified next; only a ``Trace`` keeps them."""

    def count_block(self, first: int, accepted: int, proposed: int, forced: bool) -> None:
        """Count a verified block: which new token its first draft token stands for, draft tokens accepted and proposed."""
        self.forced += accepted if forced else 0
        self.verifies += 1
        self.proposed += proposed
        self.accepted += accepted
        self.rollbacks += accepted < proposed
        self.spans.append((first, accepted, proposed - accepted))

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the spans, for JSON."""
        derived = ("acceptance_rate", "mean_accepted_length", "tokens_per_second")
        own = {name: value for name, value in asdict(self).items() if name not in ("spans", "origin")}
        return own | {name: getattr(self, name) for name in derived}
