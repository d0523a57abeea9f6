"""Let a drafter be right by chance: random weights guess almost nothing that other random weights choose."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray


class Agreeing:
    """A constraint under which each draft token becomes the only one that may come, with a chance.

    Another generation with the same ``decided`` has the same choice at each place.

    Args:
        chance: of a draft token to be right.
        rng: decides.
        vocab: the number of tokens, if another token has to come in the place of a wrong one; otherwise the model chooses.
        decided: tokens by their places in the text.
        otherwise: tokens by the places where they come if no draft token does.
    """

    def __init__(
        self,
        chance: float,
        rng: random.Random,
        vocab: int | None = None,
        decided: dict[int, int] | None = None,
        otherwise: Mapping[int, int] | None = None,
    ) -> None:
        self.chance, self.rng, self.vocab, self.otherwise = chance, rng, vocab, otherwise or {}
        self.decided = dict(self.otherwise) if decided is None else decided
        self.place = 0

    def mask(self, logits: NDArray[np.float32]) -> None:
        """Leave the token that was decided on, if one was."""
        if (token := self.decided.get(self.place)) is not None:
            kept = logits[token]
            logits[:] = -np.inf
            logits[token] = kept

    def take(self, token: int) -> None:
        """Go to the next place."""
        self.place += 1

    def forced(self) -> list[int]:
        """Return nothing: the drafter is asked."""
        return []

    def fitting(self, tokens: Sequence[int]) -> int:
        """Decide on the places of draft tokens, none of which has been masked yet; all of them may be verified."""
        for place, token in enumerate(tokens, self.place):
            self.decided.pop(place, None)
            if self.rng.random() < self.chance:
                self.decided[place] = token
            elif place in self.otherwise:
                self.decided[place] = self.otherwise[place]
            elif self.vocab is not None:
                self.decided[place] = (token + 1) % self.vocab
        return len(tokens)
