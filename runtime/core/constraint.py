"""What a text may go on with: a grammar's view of the next tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Constraint(Protocol):
    """Follows one text, whose first token is the first new one of a generation."""

    def mask(self, logits: NDArray[np.float32]) -> None:
        """Make minus infinity of logits [V] for each token that may not come next."""

    def take(self, token: int) -> None:
        """Go on behind ``token``, which may come next."""

    def forced(self) -> list[int]:
        """Return the tokens that come next whatever the model says; none where it has a choice."""

    def fitting(self, tokens: Sequence[int]) -> int:
        """Return how many of ``tokens``, from the first on, may come next."""
