"""Draw tokens from logits, and accept draft tokens so that the distribution stays the target's own."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hybridge.cache.errors import NumericalError
from hybridge.runtime.backends.one_thread import best
from hybridge.runtime.core.sampling import Sampling
from hybridge.runtime.generation.constraint import Constraint
from hybridge.runtime.generation.noise import Stream, noise

Watch = Callable[[Tensor, int], None]
"""Called with each new token of the text, in order, and with the model's logits [V] for its position."""


@dataclass(frozen=True)
class Proposal:
    """Draft tokens. probabilities, [V] for each, are what they were drawn from; none where the drafter is certain.

    chance is the drafter's own estimate that a token is right if those before it are, where it has one; chances, where it has
    one for each token. They decide how many are verified, so they must not depend on tokens that were drawn: that would leave
    another distribution than ``probabilities``.
    """

    tokens: list[int]
    probabilities: Sequence[Tensor] | None = None
    chance: float | None = None
    chances: Sequence[float] | None = None

    def drawn_from(self, i: int) -> Tensor | None:
        """Return what draft token ``i`` was drawn from, if it was."""
        return None if self.probabilities is None else self.probabilities[i]


class Sampler:
    """Draws the token of each position from noise of its own.

    The noise follows from the seed and the position alone. A token of a deterministic drafter is therefore accepted exactly
    where plain decoding would have drawn it: with the same seed the text is the same with such a drafter and without.
    """

    def __init__(self, sampling: Sampling, watch: Watch | None = None, constraint: Constraint | None = None) -> None:
        """constraint: what ``choose`` and ``accept`` may return, which tell it what they have returned."""
        self.sampling, self.watch, self.constraint = sampling, watch, constraint
        self.seed = secrets.randbits(63) if sampling.seed is None else sampling.seed

    @property
    def greedy(self) -> bool:
        return self.sampling.temperature == 0

    def draw(self, logits: Tensor, text: Sequence[int], stream: Stream = Stream.DRAW) -> int:
        """Draw the token after ``text`` by its logits [V]. Another stream is other noise for the same position.

        Raises NumericalError where one of them is NaN or positive infinity, or none is finite.
        """
        if self.greedy:
            return _best(self._penalized(logits, text)[None])[0]
        return self._pick(self.distribution(logits, text), len(text), stream)

    def choose(self, logits: Tensor, text: Sequence[int]) -> int:
        """Draw the token after ``text`` that the text goes on with."""
        token = self._take(self.draw(self._allowed(logits), text))
        self._show(logits[None], [token])
        return token

    def accept(self, logits: Tensor, proposal: Proposal, text: Sequence[int]) -> list[int]:
        """Return the tokens after ``text``: the accepted draft tokens and one more; logits [len(proposal) + 1, V].

        Each token is distributed as ``draw`` would have it (Leviathan, Kalman, Matias, arXiv:2211.17192): a token x drawn
        from q is accepted with probability min(1, p(x) / q(x)), else its replacement comes from max(0, p - q), normalized. For
        a certain drafter that is the same as drawing from p and comparing.
        """
        new = self._accept(logits, proposal, text)
        self._show(logits, new)
        return new

    def _accept(self, logits: Tensor, proposal: Proposal, text: Sequence[int]) -> list[int]:
        if self.greedy and self.sampling.repetition_penalty == 1 and self.constraint is None:
            tokens = _best(logits)
            return tokens[: _agreeing(tokens, proposal.tokens) + 1]
        new: list[int] = []
        for i, token in enumerate(proposal.tokens):
            new.append(self._take(self._judge(self._allowed(logits[i]), token, proposal.drawn_from(i), [*text, *new])))
            if new[-1] != token:
                return new
        return [*new, self._take(self.draw(self._allowed(logits[len(new)]), [*text, *new]))]

    def distribution(self, logits: Tensor, text: Sequence[int]) -> Tensor:
        """Return float64 [V]: what the token after ``text`` is drawn from, for a temperature above 0."""
        scores = self._penalized(logits, text).double() / self.sampling.temperature
        return _min_p(_top_p(_top_k(scores, self.sampling.top_k).softmax(-1), self.sampling.top_p), self.sampling.min_p)

    def _allowed(self, logits: Tensor) -> Tensor:
        return logits if self.constraint is None else self.constraint.mask(logits)

    def _take(self, token: int) -> int:
        if self.constraint is not None:
            self.constraint.take(token)
        return token

    def _show(self, logits: Tensor, tokens: Sequence[int]) -> None:
        if self.watch is not None:
            for row, token in zip(logits, tokens, strict=False):
                self.watch(row, token)

    def _judge(self, logits: Tensor, token: int, q: Tensor | None, text: Sequence[int]) -> int:
        """Return ``token`` if it is accepted, else its replacement."""
        if q is None or self.greedy:
            return self.draw(logits, text)
        p = self.distribution(logits, text)
        if self.noise(len(text), Stream.ACCEPT) * float(q[token]) < float(p[token]):
            return token
        return self._pick((p - q).clamp(min=0), len(text), Stream.DRAW)

    def _penalized(self, logits: Tensor, text: Sequence[int]) -> Tensor:
        """Keskar et al., arXiv:1909.05858, as transformers does it: tokens of the text lose, whatever their sign."""
        penalty = self.sampling.repetition_penalty
        if penalty == 1:
            return logits
        _best(logits[None])  # what follows makes a number of a NaN
        seen = torch.tensor(sorted(set(text)))
        scores = logits[seen]
        penalized = torch.where(scores < 0, scores * penalty, scores / penalty).nan_to_num()  # beyond float32: its largest
        return logits.index_put((seen,), penalized)

    def _pick(self, weights: Tensor, position: int, stream: Stream) -> int:
        """By the inverse of the cumulative weights, which need not sum to 1."""
        total = weights.cumsum(-1)
        if not math.isfinite(float(total[-1])):
            raise _no_numbers()
        place = torch.searchsorted(total, self.noise(position, stream) * total[-1], right=True)
        return int(place.clamp(max=int(weights.nonzero()[-1])))  # rounding may not reach a token that cannot come

    def noise(self, position: int, stream: Stream) -> float:
        """Return a number in [0, 1) that belongs to a position of the text; another stream has other ones."""
        return noise(self.seed, position, stream)


def _best(logits: Tensor) -> list[int]:
    """Return the likeliest token of each row of [n, V]. Raises NumericalError: to numpy a NaN is the largest number."""
    tokens = best(logits)
    if not all(math.isfinite(row[token]) for row, token in zip(logits, tokens, strict=True)):
        raise _no_numbers()
    return tokens


def _no_numbers() -> NumericalError:
    return NumericalError(
        "no token can be drawn from logits that are NaN, infinite or of no token: the weights or the state hold NaN, or "
        "numbers beyond float32; validate the artifact against its checkpoint."
    )


def _agreeing(best: Sequence[int], tokens: Sequence[int]) -> int:
    """Return how many draft tokens from the first on are right."""
    return next((i for i, token in enumerate(tokens) if token != best[i]), len(tokens))


def _top_k(scores: Tensor, k: int) -> Tensor:
    if not 0 < k < scores.shape[-1]:
        return scores
    return torch.where(scores < scores.topk(k).values[-1], float("-inf"), scores)


def _top_p(p: Tensor, top_p: float) -> Tensor:
    """The fewest best tokens that together reach ``top_p``."""
    if top_p == 1:
        return p
    sorted_p, order = p.sort(descending=True)
    before = sorted_p.cumsum(-1) - sorted_p
    return _normalized(p.index_put((order,), torch.where(before < top_p, sorted_p, 0.0)))


def _min_p(p: Tensor, min_p: float) -> Tensor:
    """Without tokens less probable than ``min_p`` of the best one (Nguyen et al., arXiv:2407.01082)."""
    return p if min_p == 0 else _normalized(torch.where(p < min_p * p.max(), 0.0, p))


def _normalized(p: Tensor) -> Tensor:
    return p / p.sum()
