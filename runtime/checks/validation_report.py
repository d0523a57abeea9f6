"""The results of a validation, for people and as JSON."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from hybridge.cache.errors import ValidationError
from hybridge.runtime.checks.drift import Drift


@dataclass(kw_only=True)
class Divergence:
    """The first place where the artifact leaves the eager model, with what led to it."""

    program: int
    operations: list[str]
    position: int
    error: float


@dataclass(kw_only=True)
class GenerationCheck:
    """Greedy generations compared. A tie is a token whose best two logits are closer than the tolerance."""

    prompts: int = 0
    tokens: int = 0
    plain_matches: int = 0
    speculative_matches: int = 0
    ties: int = 0
    accepted: int = 0
    rejected: int = 0
    rollbacks: int = 0

    @property
    def passed(self) -> bool:
        return self.plain_matches == self.speculative_matches == self.prompts


@dataclass(kw_only=True)
class ValidationReport:
    """Counts of what was run, and how far the artifact was off. Errors are absolute, and relative to the largest logit."""

    seed: int
    tolerance: float
    operations: Counter[str] = field(default_factory=Counter)
    compared: int = 0
    worst: float = 0.0
    total: float = 0.0
    largest_logit: float = 0.0
    top1_matches: int = 0
    first_divergence: Divergence | None = None
    generation: GenerationCheck = field(default_factory=GenerationCheck)
    drift: Drift | None = None

    @property
    def worst_relative(self) -> float:
        return self.worst / self.largest_logit if self.largest_logit else 0.0

    @property
    def mean(self) -> float:
        return self.total / self.compared if self.compared else 0.0

    @property
    def mean_relative(self) -> float:
        return self.mean / self.largest_logit if self.largest_logit else 0.0

    @property
    def top1_agreement(self) -> float:
        return self.top1_matches / self.compared if self.compared else 0.0

    @property
    def passed(self) -> bool:
        return self.first_divergence is None and self.generation.passed

    def check(self) -> None:
        """Raises ValidationError where the artifact is not what the checkpoint is."""
        if not self.passed:
            raise ValidationError(
                f"the artifact disagrees with the eager model: worst error {self.worst_relative:.1e} of the largest logit "
                f"(tolerance {self.tolerance:.0e}), greedy output equal for {self.generation.speculative_matches} of "
                f"{self.generation.prompts} prompts. Repeat with --seed {self.seed}."
            )

    def to_dict(self) -> dict[str, Any]:
        """Return everything, for JSON."""
        derived = ("worst_relative", "mean", "mean_relative", "top1_agreement", "passed")
        own = {each.name: getattr(self, each.name) for each in fields(self)} | {name: getattr(self, name) for name in derived}
        own |= {"operations": dict(self.operations), "generation": asdict(self.generation)}
        own["drift"] = asdict(self.drift) if self.drift else None
        own["first_divergence"] = asdict(self.first_divergence) if self.first_divergence else None
        # JSON has no infinity.
        return {name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in own.items()}
