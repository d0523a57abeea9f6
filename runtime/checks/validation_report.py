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
    """Greedy generations compared. A tie is a token whose best two logits are closer than the tolerance.

    drafted: with the artifact's own drafter, if it has one; the others' draft tokens are looked up in the text.
    """

    prompts: int = 0
    tokens: int = 0
    plain_matches: int = 0
    speculative_matches: int = 0
    ties: int = 0
    accepted: int = 0
    rejected: int = 0
    rollbacks: int = 0
    drafted_prompts: int = 0
    drafted_matches: int = 0
    drafted_accepted: int = 0
    drafted_rejected: int = 0

    @property
    def passed(self) -> bool:
        own = self.drafted_matches == self.drafted_prompts
        return own and self.plain_matches == self.speculative_matches == self.prompts


@dataclass(kw_only=True)
class TextCheck:
    """Texts that the artifact's tokenizer and the checkpoint's were given. difference: the first with other tokens."""

    texts: int = 0
    equal: int = 0
    difference: str = ""


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
    worst_at: dict[tuple[str, int], float] = field(default_factory=dict)
    """The worst error by operation and position."""
    first_divergence: Divergence | None = None
    generation: GenerationCheck = field(default_factory=GenerationCheck)
    tokenizer: TextCheck = field(default_factory=TextCheck)
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
        return self.first_divergence is None and self.generation.passed and not self.tokenizer.difference

    def observe(self, operation: str, position: int, error: float, *, same_best: bool) -> None:
        """Count a vector of logits: the operation that gave it, its position and error, and whether its best token agrees."""
        self.compared += 1
        self.worst, self.total = max(self.worst, error), self.total + error
        self.top1_matches += same_best
        place = (operation, position)
        self.worst_at[place] = max(self.worst_at.get(place, 0.0), error)

    def check(self) -> None:
        """Raises ValidationError where the artifact is not what the checkpoint is."""
        if self.tokenizer.difference:
            raise ValidationError(
                f"the artifact's tokenizer gives other tokens than the checkpoint's: {self.tokenizer.difference}. Export the "
                "model again, or name the tokenizer that it was exported with by --tokenizer."
            )
        if not self.passed:
            raise ValidationError(
                f"the artifact disagrees with the eager model: worst error {self.worst_relative:.1e} of the largest logit "
                f"(tolerance {self.tolerance:.0e}), greedy output equal for {self.generation.speculative_matches} of "
                f"{self.generation.prompts} prompts{self._drafted()}. Repeat with --seed {self.seed}."
            )

    def _drafted(self) -> str:
        """How the artifact's own drafter did, if it has one."""
        check = self.generation
        if not check.drafted_prompts:
            return ""
        return f", with its own drafter {check.drafted_matches} of {check.drafted_prompts}"

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the errors of each position, for JSON."""
        derived = ("worst_relative", "mean", "mean_relative", "top1_agreement", "passed")
        names = (*(each.name for each in fields(self) if each.name != "worst_at"), *derived)
        own = {name: getattr(self, name) for name in names}
        own |= {"operations": dict(self.operations), "generation": asdict(self.generation)}
        own["tokenizer"] = asdict(self.tokenizer)
        own["drift"] = asdict(self.drift) if self.drift else None
        own["first_divergence"] = asdict(self.first_divergence) if self.first_divergence else None
        # JSON has no infinity.
        return {name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in own.items()}
