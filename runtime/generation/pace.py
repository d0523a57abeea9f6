"""Choose how many draft tokens to verify: as many as measured acceptance and costs make worthwhile, or none.

A block of S tokens, of which S - 1 are drafted and each is right with probability a, yields (1 - a^S) / (1 - a) tokens on
average (Leviathan, Kalman, Matias, arXiv:2211.17192, equation 1). The pace is the S with the most tokens a second; S = 1 is
plain decoding. While it decodes plainly, some draft tokens are made and compared with what comes, without verifying them.
"""

from __future__ import annotations

from collections.abc import Sequence

SHADOW_SHARE = 0.01
"""Share of the time that draft tokens may take which are only compared with what comes."""

FIRST_SHADOWS = 1.0
"""Decodes' time that they may take besides, at the start, when nothing is known."""

SHADOW_LENGTH = 3
"""Draft tokens in a row that are compared; later ones would only be judged if these are right."""

FORGET = 0.95
"""Weight of a judged draft token once one more was judged: the last twenty or so decide."""

MARGIN = 1.1
"""How much faster than decoding a block must look by the average draft token: right ones come in runs, so it yields less."""

MEASURED = 4
"""Plain rounds at the start: the first ones are slower than what follows, and everything is held against them."""

SOON, EVERY = 8, 50
"""Blocks after which plain rounds measure again what decoding costs: each time twice as many, from the first to the second."""

PATIENCE = 4
"""Plain rounds from one weighing to the next."""

TRIED = 16
"""How often tokens that are surely right are decoded because blocks looked slow, until a block is measured again."""

YIELD_FORGET, YIELD_ROUNDS = 0.85, 3.0
"""Weight of a round with a proposal once one more was done, and how many must have been slower than plain decoding to stop."""

FIRST_STEP = 0.15
"""Cost of one more token to verify, in decodes, while no block was measured."""


class Yield:
    """What the last rounds with a proposal brought: the average of draft tokens may promise more than they keep."""

    def __init__(self) -> None:
        self._tokens = self._seconds = self._rounds = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        """Account for a round."""
        self._tokens, self._seconds = YIELD_FORGET * self._tokens + tokens, YIELD_FORGET * self._seconds + seconds
        self._rounds = YIELD_FORGET * self._rounds + 1

    def doubt(self) -> None:
        """Trust it less: a draft token that was only compared was right."""
        self._rounds *= YIELD_FORGET

    def is_slower_than(self, decode: float) -> bool:
        """Return whether enough rounds were slower than plain decoding, in which a token takes ``decode`` seconds."""
        return self._rounds >= YIELD_ROUNDS and self._tokens * decode < self._seconds


class Pace:
    """Chooses block lengths; fed with what each round did. Seconds are wall time."""

    def __init__(self, lengths: Sequence[int], fixed: int | None = None) -> None:
        """lengths: of the verify methods, ascending; fixed: take this block length whatever was measured."""
        self.lengths, self.fixed = lengths, fixed
        self.cost: dict[int, float] = {}
        self._measured: dict[int, int] = {}
        self._every = SOON
        self._right, self._judged = 1.4, 2.0  # a first estimate: 70 %, worth two tries
        self._plain_rounds = self._since_plain = self._patience = 0
        self._is_cold = False  # the last round was a block: a plain one behind it takes longer than in a row
        self._elapsed = self._shadowing = self._shadow_cost = 0.0
        self._drafting = 0.0  # seconds of a proposal
        self._drafted = Yield()
        self._shadow: list[int] = []
        self._passed = 0

    @property
    def acceptance(self) -> float:
        """Return the chance that a draft token is accepted, as far as the last ones tell."""
        return self._right / self._judged

    def choose(self, room: int, chance: float | None = None) -> int:
        """Return the block length for the next round, at most ``room``; 1 for plain decoding.

        chance that a draft token is right: what was measured, unless the drafter knows better.
        """
        if self.fixed is not None:
            return min(self.fixed, room)
        if self._plain_rounds < MEASURED:
            return 1
        if self._since_plain >= self._every:
            return 1
        if chance is None and self._patience:
            self._patience -= 1
            return 1  # weighing takes time too, and little changes from one plain round to the next
        if chance is None and self._drafted.is_slower_than(self.cost[1]):
            return 1
        lengths = [1, *(min(length, room) for length in self.lengths if min(length, room) > 1)]
        a, margin = (self.acceptance, MARGIN) if chance is None else (chance, 1.0)
        best = max(lengths, key=lambda length: expected(length, a) / self._cost(length) / (margin if length > 1 else 1.0))
        self._patience = PATIENCE if best == 1 else 0
        return best

    def cut(self, chances: Sequence[float]) -> int:
        """Return how many draft tokens to verify of those whose chances are given: each is right if those before it are.

        What proposing them has cost is spent, whatever is verified; 0 is to decode.
        """
        if self.fixed is not None or 1 not in self.cost:
            return len(chances)
        yields, reached = [1.0], 1.0  # tokens of a round, by how many draft tokens are verified
        for chance in chances:
            reached *= chance
            yields.append(yields[-1] + reached)
        counts = sorted({0, *(min(length - 1, len(chances)) for length in self.lengths)})
        return max(counts, key=lambda count: yields[count] / self._drafted_cost(count + 1))

    def sure(self, count: int) -> int:
        """Return how many of ``count`` draft tokens to verify that are surely right: as many as are faster than decoding."""
        best = self.cut([1.0] * count)
        self._passed += best < count
        if self._passed <= TRIED:
            return best
        self._passed = 0
        return count

    def round_done(self, length: int, proposed: int, accepted: int, seconds: float, drafting: float = 0.0) -> None:
        """Account for a round: ``length`` tokens ran, ``accepted`` of the ``proposed`` ones in it were right.

        drafting: how many of the seconds a proposal took that could have been left out.
        """
        rounded = next((each for each in self.lengths if each >= length), length) if length > 1 else 1
        if drafting:
            self._drafting = drafting if self._drafting == 0.0 else self._drafting + 0.1 * (drafting - self._drafting)
            if rounded in self._measured:  # the first one says little
                self._drafted.add(accepted + 1, seconds)
            seconds -= drafting if length == 1 else 0.0  # what is left is a decode
        length = rounded
        self._shadow = self._shadow if length == 1 else []
        self._plain_rounds += length == 1
        self._since_plain += length > 1
        if length > 1 or self._plain_rounds <= MEASURED or not (self._is_cold or drafting):
            self._measure(length, seconds)
        self._is_cold = length > 1
        self._elapsed += seconds
        self._judge(proposed, accepted)

    def _measure(self, length: int, seconds: float) -> None:
        """Learn what a round costs. The first one with a length is often slower, so most of what was expected stays."""
        if length == 1 and self._since_plain:
            if self._since_plain >= self._every:
                self._every = min(2 * self._every, EVERY)
            self._since_plain = 0
        known = self._cost(length) if 1 in self.cost else seconds
        count = self._measured[length] = self._measured.get(length, 0) + 1
        # The machine now and then makes a round slower than it is, but never faster.
        weight = {1: 0.25, 2: 1.0}.get(count, 0.5 if seconds < known else 0.1)
        self.cost[length] = known + weight * (min(seconds, 2 * known) - known)

    # Draft tokens that are only compared

    @property
    def shadow_length(self) -> int:
        """Return how many draft tokens to propose at once for comparing."""
        return min(SHADOW_LENGTH, self.lengths[-1] - 1)

    def wants_shadow(self) -> bool:
        """Return whether time may be spent on draft tokens that are only compared."""
        next_cost = self._shadow_cost or self.cost.get(1, 0.0)
        allowed = SHADOW_SHARE * self._elapsed + FIRST_SHADOWS * self.cost.get(1, 0.0)
        return not self._shadow and self._shadowing + next_cost <= allowed

    def shadow(self, tokens: list[int], seconds: float) -> None:
        """Keep draft tokens that are only compared with what comes, and which took ``seconds`` to propose."""
        self._shadow, self._shadow_cost = tokens, seconds
        self._shadowing += seconds

    def compare(self, token: int) -> None:
        """Compare ``token``, which came, with the next shadow draft token."""
        if self._shadow:
            right = self._shadow.pop(0) == token
            self._judge(1, int(right))
            if right:
                self._patience = 0
                self._drafted.doubt()
            else:
                self._shadow = []

    def _judge(self, proposed: int, accepted: int) -> None:
        """Judge draft tokens up to the first wrong one; those that follow it were not verified."""
        for right in [1] * accepted + [0] * (accepted < proposed):
            self._right, self._judged = FORGET * self._right + right, FORGET * self._judged + 1

    def _drafted_cost(self, length: int) -> float:
        """Seconds of a round that verifies ``length`` tokens of a proposal, or decodes in spite of it."""
        return self._cost(length) + (self._drafting if length == 1 else 0.0)

    def _cost(self, length: int) -> float:
        """Seconds of a round, measured or by the nearest that was."""
        rounded = next((each for each in self.lengths if each >= length), length) if length > 1 else 1
        if rounded in self.cost:
            return self.cost[rounded]
        decode = self.cost[1]
        nearest = max((each for each in self.cost if each < rounded), default=1)
        if nearest == 1:  # no block was measured yet
            return decode + FIRST_STEP * decode * (rounded - 1) + self._shadow_cost
        return self.cost[nearest] + (self.cost[nearest] - decode) / (nearest - 1) * (rounded - nearest)


def expected(length: int, acceptance: float) -> float:
    """Return how many tokens a block of ``length`` yields on average."""
    a = min(acceptance, 0.999)
    return float((1 - a**length) / (1 - a))
