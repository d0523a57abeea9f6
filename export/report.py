"""The figures of a validation and of an evaluation, which need no PyTorch to be read and shown."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from hybridge.errors import ValidationError


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Figures over ``positions`` tokens at the positions ``first`` to ``last`` of their texts.

    Perplexities are of the texts' own next tokens; None if no text continues after a position.

    Args:
        kl: the mean Kullback-Leibler divergence of the model from the original, in nats.
        kl_error: its standard error.
        kl_99: what 99 % of the positions stay below.
        top1_agreement: the share of positions with the same best token.
    """

    first: int
    last: int
    positions: int
    kl: float
    kl_error: float
    kl_99: float
    kl_largest: float
    top1_agreement: float
    perplexity: float | None
    original_perplexity: float | None


@dataclass(kw_only=True)
class Divergence:
    """The first difference from the eager model, with the operations that led to it."""

    program: int
    operations: list[str]
    position: int
    error: float


@dataclass(kw_only=True)
class GenerationCheck:
    """Counts of compared greedy generations. A tie is a token whose best two logits are closer than the tolerance.

    drafted_*: with the artifact's own drafter, if it has one; the draft tokens of the others are looked up in the text.
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
    """Counts of texts for which both tokenizers were compared. difference: the first text with other tokens."""

    texts: int = 0
    equal: int = 0
    difference: str = ""


@dataclass(kw_only=True)
class ValidationReport:
    """The result of a validation: counts and errors, absolute and relative to the largest logit.

    reader: of the reference's weights; the export read them by the same one, so a validation says nothing of it.
    delegated: the same over prompts that an accelerator has read with weights of fewer bits than float32; the rest is then of
    the CPU's own methods.
    """

    seed: int
    tolerance: float
    reader: str = ""
    operations: Counter[str] = field(default_factory=Counter)
    compared: int = 0
    worst: float = 0.0
    total: float = 0.0
    largest_logit: float = 0.0
    top1_matches: int = 0
    decoded: int = 0
    """Vectors of logits whose text was decoded again, a token at a time."""
    decoded_equal: int = 0
    """Those that have the same bits."""
    same_bits: bool = False
    """All must have the same bits: our kernels promise it."""
    worst_at: dict[tuple[str, int], float] = field(default_factory=dict)
    """The worst error by operation and position."""
    first_divergence: Divergence | None = None
    generation: GenerationCheck = field(default_factory=GenerationCheck)
    tokenizer: TextCheck = field(default_factory=TextCheck)
    drift: Figures | None = None
    delegated: ValidationReport | None = None

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
    def has_other_bits(self) -> bool:
        """Return whether logits depend on how their text was read, and must not."""
        return self.same_bits and self.decoded_equal < self.decoded

    @property
    def passed(self) -> bool:
        own = self.first_divergence is None and self.generation.passed and not self.tokenizer.difference
        return own and not self.has_other_bits and (self.delegated is None or self.delegated.passed)

    def observe(self, operation: str, position: int, error: float, *, same_best: bool) -> None:
        """Count a vector of logits by the operation that gave it, its position and error, and whether its best token agrees."""
        self.compared += 1
        self.worst, self.total = max(self.worst, error), self.total + error
        self.top1_matches += same_best
        place = (operation, position)
        self.worst_at[place] = max(self.worst_at.get(place, 0.0), error)

    def check(self) -> None:
        """Raise ValidationError if the artifact differs from its checkpoint."""
        if self.tokenizer.difference:
            raise ValidationError(
                f"the artifact's tokenizer gives other tokens than the checkpoint's: {self.tokenizer.difference}. Export the "
                "model again, or name the tokenizer that it was exported with by --tokenizer."
            )
        if self.has_other_bits and self.first_divergence is None and self.generation.passed:
            raise ValidationError(
                f"{self.decoded - self.decoded_equal} of {self.decoded} vectors of logits are not bit-identical to those of "
                "decodes, which our kernels promise: a text may depend on blocks and drafters. Export the model again; if that "
                f"changes nothing, report it with the model's config.json. Repeat with --seed {self.seed}."
            )
        if self.delegated is not None and not self.delegated.passed:
            raise ValidationError(
                f"the accelerator disagrees with the eager model: worst error {self.delegated.worst_relative:.1e} of the "
                f"largest logit (tolerance {self.delegated.tolerance:.0e}). Export with --delegate-weights of more bits."
            )
        if not self.passed:
            check = self.generation
            own = f", with its own drafter {check.drafted_matches} of {check.drafted_prompts}" if check.drafted_prompts else ""
            raise ValidationError(
                f"the artifact disagrees with the eager model: worst error {self.worst_relative:.1e} of the largest logit "
                f"(tolerance {self.tolerance:.0e}), greedy output equal for {check.speculative_matches} of "
                f"{check.prompts} prompts{own}. Repeat with --seed {self.seed}."
            )

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the errors of each position, for JSON."""
        derived = ("worst_relative", "mean", "mean_relative", "top1_agreement", "passed")
        own = asdict(self) | {"operations": dict(self.operations)}  # asdict would count the pairs of a Counter
        own |= {name: getattr(self, name) for name in derived}
        del own["worst_at"]
        own["delegated"] = self.delegated.to_dict() if self.delegated is not None else None
        # JSON has no infinity.
        return {name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in own.items()}
