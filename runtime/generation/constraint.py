"""What a text may go on with: a grammar's view of the next tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor


class Constraint(Protocol):
    """Follows one text, whose first token is the first new one of a generation."""

    def mask(self, logits: Tensor) -> Tensor:
        """Return logits [V] with minus infinity for each token that may not come next; the next call reuses their memory."""

    def take(self, token: int) -> None:
        """Go on behind ``token``, which may come next."""

    def forced(self) -> list[int]:
        """Return the tokens that come next whatever the model says; none where it has a choice."""

    def fitting(self, tokens: Sequence[int]) -> int:
        """Return how many of ``tokens``, from the first on, may come next."""
