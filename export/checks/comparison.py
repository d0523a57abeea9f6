"""Compare two models by what they expect after each token of some texts: divergence, agreement, perplexity, by position.

``measure_drift`` does so on texts that an artifact samples itself: not to check the artifact, but to say what rounding costs.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hybridge.export.checks.random_program import Oracle
from hybridge.runtime.core.session import Session

FIRST_RANGE = 64
"""Positions of the first row; each further row ends at twice the position of the one before it."""


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Figures over ``positions`` tokens at the positions ``first`` to ``last`` of their texts.

    kl: the mean Kullback-Leibler divergence of the model from the original, in nats; kl_error: its standard error; kl_99: what
    99 % of the positions stay below. top1_agreement: the share of positions with the same best token. Perplexities are of the
    texts' own next tokens; None where no text goes on after a position.
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


@dataclass(frozen=True, kw_only=True)
class ComparisonReport:
    """The figures of all positions, and of ranges of them."""

    texts: int
    whole: Figures
    ranges: list[Figures]

    def to_dict(self) -> dict[str, Any]:
        """Return everything, for JSON."""
        return asdict(self)


class Comparison:
    """Collects what two models expect."""

    def __init__(self) -> None:
        self._rows: list[Tensor] = []

    def add(self, tokens: list[int], original: Tensor, model: Tensor) -> None:
        """Take logits [T, V] of both models after each of the T tokens of one text."""
        self._rows.append(_rows(torch.tensor(tokens), original, model))

    def report(self) -> ComparisonReport:
        """Return the figures of what was added; at least one text."""
        rows = torch.cat(self._rows)
        longest = int(rows[:, 0].max()) + 1
        ends = [min(FIRST_RANGE << i, longest) for i in range(max(1, math.ceil(math.log2(longest / FIRST_RANGE)) + 1))]
        ranges = [_figures(rows, first, last) for first, last in zip([0, *ends[:-1]], ends, strict=True)]
        return ComparisonReport(texts=len(self._rows), whole=_figures(rows, 0, longest), ranges=ranges)


def divergence(original: Tensor, model: Tensor) -> Tensor:
    """Return the KL divergence [T] in nats of logits [T, V] from the original's, never below 0."""
    want, got = original.log_softmax(-1), model.log_softmax(-1)
    total: Tensor = (want.exp() * (want - got)).sum(-1).clamp(min=0)  # rounding may make it a hair less than 0
    return total


def _rows(tokens: Tensor, original: Tensor, model: Tensor) -> Tensor:
    """A row a position: itself, KL, same best token, log probability of the next token by the model and by the original."""
    following = torch.cat([tokens[1:], tokens[:1]])[:, None]  # the last one has none, and is marked by NaN
    logs = [each.log_softmax(-1).gather(-1, following)[:, 0] for each in (model, original)]
    for each in logs:
        each[-1] = math.nan
    same = (original.argmax(-1) == model.argmax(-1)).double()
    columns = [torch.arange(len(tokens)), divergence(original, model), same, *logs]
    return torch.stack([column.double() for column in columns], 1)


def _figures(rows: Tensor, first: int, end: int) -> Figures:
    chosen = rows[(rows[:, 0] >= first) & (rows[:, 0] < end)]
    kl, same, of_model, of_original = chosen[:, 1], chosen[:, 2], chosen[:, 3], chosen[:, 4]
    count = len(chosen)
    return Figures(
        first=first,
        last=end - 1,
        positions=count,
        kl=float(kl.mean()),
        kl_error=float(kl.std(correction=0)) / math.sqrt(count),
        kl_99=float(kl.kthvalue(math.ceil(0.99 * count)).values),
        kl_largest=float(kl.max()),
        top1_agreement=float(same.mean()),
        perplexity=_perplexity(of_model),
        original_perplexity=_perplexity(of_original),
    )


def _perplexity(logs: Tensor) -> float | None:
    known = logs[~logs.isnan()]
    return math.exp(min(700.0, -float(known.mean()))) if len(known) else None


DRIFT_TEXTS, DRIFT_TOKENS = 8, 64


@dataclass(frozen=True, kw_only=True)
class Drift:
    """Over ``positions`` of sampled texts: mean KL divergence in nats, original to rounded, and equal best tokens."""

    positions: int
    kl: float
    top1_agreement: float


def measure_drift(session: Session, original: Oracle, rounded: Oracle, *, seed: int) -> Drift:
    """Compare the two models on texts that the artifact samples at temperature 1, each from a token of its own."""
    kl, agree, positions = 0.0, 0, 0
    for i in range(DRIFT_TEXTS):
        session.reset()
        start = [(seed + 7919 * i) % session.vocab_size]
        count = max(1, min(DRIFT_TOKENS, session.max_seq_len - 1))
        text = start + list(session.generate(start, max_new_tokens=count, temperature=1.0, seed=seed + i))
        want, got = original(text).log_softmax(-1), rounded(text).log_softmax(-1)
        kl += float(F.kl_div(got, want, reduction="sum", log_target=True))
        agree += int((want.argmax(-1) == got.argmax(-1)).sum())
        positions += len(text)
    return Drift(positions=positions, kl=kl / positions, top1_agreement=agree / positions)
