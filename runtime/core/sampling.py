"""How a caller wants tokens to be drawn."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real

from hybridge.cache.errors import UsageError

SMALLEST, LARGEST = 1e-6, 1e6
"""Of a temperature above 0 and of a penalty."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """temperature 0 is greedy; top_k 0, top_p 1, min_p 0 and repetition_penalty 1 leave the distribution as it is.

    Applied in transformers' order: penalty, temperature, top-k, top-p, min-p. Without a seed one is drawn.
    Raises UsageError for values that make no distribution.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        for name in ("temperature", "top_p", "min_p", "repetition_penalty"):
            _check(isinstance(getattr(self, name), Real), f"{name} is {getattr(self, name)!r}, but must be a number.")
        # Beyond these, what a logit is divided by makes it infinite, or all tokens alike.
        _check(
            self.temperature == 0 or SMALLEST <= self.temperature <= LARGEST,
            f"temperature is {self.temperature}, but must be 0 (greedy) or lie between {SMALLEST} and {LARGEST:.0f}.",
        )
        _check(type(self.top_k) is int and self.top_k >= 0, f"top_k is {self.top_k!r}, but must be 0 (all tokens) or more.")
        _check(0 < self.top_p <= 1, f"top_p is {self.top_p}, but must be above 0 and at most 1.")
        _check(0 <= self.min_p <= 1, f"min_p is {self.min_p}, but must lie between 0 and 1.")
        _check(
            SMALLEST <= self.repetition_penalty <= LARGEST,
            f"repetition_penalty is {self.repetition_penalty}, but must lie between {SMALLEST} and {LARGEST:.0f}.",
        )
        _check(self.seed is None or type(self.seed) is int, f"seed is {self.seed!r}, but must be a whole number.")


def _check(fine: bool, message: str) -> None:
    if not fine:
        raise UsageError(message)
