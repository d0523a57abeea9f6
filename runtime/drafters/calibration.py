"""How likely draft tokens are to be right, by what became of those that the drafter was as sure of."""

from __future__ import annotations

import math
from collections.abc import Sequence

BANDS = 8
FORGET = 0.98
"""Weight of a judged draft token once one more was judged in its band: the last fifty or so decide."""

TRIES = 4.0
"""How many judged tokens the drafter's own estimate counts as."""


class Calibration:
    """Turns a drafter's own estimates into shares of right tokens, in bands of equal width, and learns them from the text."""

    def __init__(self) -> None:
        self._right = [TRIES * (band + 0.5) / BANDS for band in range(BANDS)]
        self._judged = [TRIES] * BANDS
        self._proposed: tuple[int, list[int], list[int]] | None = None

    def propose(self, at: int, tokens: Sequence[int], estimates: Sequence[float]) -> list[float]:
        """Return the chance of each of ``tokens``, which stand at position ``at`` of the text and behind it."""
        bands = [_band(each) for each in estimates]
        self._proposed = at, list(tokens), bands
        return [self._right[band] / self._judged[band] for band in bands]

    def learn(self, text: Sequence[int]) -> None:
        """Compare what was proposed last with the text, up to the first token that was wrong."""
        if self._proposed is None:
            return
        at, tokens, bands = self._proposed
        self._proposed = None
        for token, came, band in zip(tokens, text[at:], bands, strict=False):
            self._right[band] = FORGET * self._right[band] + (token == came)
            self._judged[band] = FORGET * self._judged[band] + 1
            if token != came:
                return


def _band(estimate: float) -> int:
    """The band of an estimate; what is no number is the least likely."""
    return 0 if math.isnan(estimate) else min(BANDS - 1, max(0, int(estimate * BANDS)))
