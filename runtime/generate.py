"""Generation, plain and speculative, over one engine: propose, verify, accept, commit.

Greedy output is the same with any drafter and without one. With a temperature the distribution is the target's own: a drafted
token x is accepted with probability p(x), and where it is not, the replacement is drawn from p without x (Leviathan, Kalman,
Matias, arXiv:2211.17192, for a drafter that is certain of its proposals).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from hybridge.cache.errors import TokenError, UsageError

if TYPE_CHECKING:
    from hybridge.runtime.session import Session


class Drafter(Protocol):
    """Guesses what comes next."""

    def propose(self, tokens: Sequence[int], limit: int) -> list[int]:
        """At most ``limit`` tokens that may follow ``tokens``; none where it has no idea."""


@dataclass(kw_only=True)
class GenerationStats:
    """What a generation did. Times in seconds."""

    prompt_tokens: int = 0
    new_tokens: int = 0
    proposed: int = 0
    accepted: int = 0
    verifies: int = 0
    decodes: int = 0
    rollbacks: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    spans: list[tuple[int, int, int]] = field(default_factory=list)
    """For each verified block: which new token its first guess stands for, guesses accepted, guesses rejected."""

    @property
    def acceptance_rate(self) -> float:
        """Accepted of the proposed tokens; 0 where none were proposed."""
        return self.accepted / self.proposed if self.proposed else 0.0

    @property
    def tokens_per_second(self) -> float:
        """New tokens after the first, which the prefill pays for."""
        return (self.new_tokens - 1) / self.decode_seconds if self.decode_seconds and self.new_tokens > 1 else 0.0


class Sampler:
    """Draws tokens from logits [V]: the best one at temperature 0, else by softmax."""

    def __init__(self, temperature: float, seed: int | None) -> None:
        if not temperature >= 0:
            raise UsageError(f"temperature is {temperature}, but must be 0 (greedy) or more.")
        self.temperature = temperature
        self._random = torch.Generator()
        if seed is None:
            self._random.seed()
        else:
            self._random.manual_seed(seed)

    def draw(self, logits: Tensor) -> int:
        """The next token."""
        if self.temperature == 0:
            return int(logits.argmax())
        return self._pick(self._probabilities(logits))

    def accept(self, logits: Tensor, drafted: int) -> int:
        """``drafted`` where it is accepted, else its replacement; either way distributed as ``draw`` is."""
        if self.temperature == 0:
            return int(logits.argmax())
        p = self._probabilities(logits)
        if torch.rand((), generator=self._random, dtype=torch.float64) < p[drafted]:
            return drafted
        p[drafted] = 0.0
        return self._pick(p)

    def _probabilities(self, logits: Tensor) -> Tensor:
        return (logits.double() / self.temperature).softmax(-1)

    def _pick(self, weights: Tensor) -> int:
        return int(torch.multinomial(weights, 1, generator=self._random))


def generate(
    session: Session,
    tokens: Sequence[int] | Tensor,
    *,
    max_new_tokens: int,
    drafter: Drafter | None,
    temperature: float,
    seed: int | None,
    stats: GenerationStats,
) -> Iterator[int]:
    """Yield up to ``max_new_tokens`` tokens that continue ``tokens``; an end-of-sequence token is the last one.

    Starts from the session's state and stops early where the context is full. Accepted tokens are committed before they are
    yielded; the last one of all is not committed. Raises UsageError, TokenError and CapacityError before the first token.
    """
    sampler = Sampler(temperature, seed)
    if max_new_tokens < 1:
        raise UsageError(f"max_new_tokens is {max_new_tokens}, but must be at least 1.")
    history = [int(token) for token in tokens]
    if not history:
        raise TokenError("the prompt is empty; give at least one token.")
    began = time.perf_counter()
    logits = session.prefill(history)
    stats.prompt_tokens, stats.prefill_seconds = len(history), time.perf_counter() - began
    return _continue(session, history, sampler.draw(logits), sampler, max_new_tokens, drafter, stats)


def _continue(
    session: Session,
    history: list[int],
    token: int,
    sampler: Sampler,
    remaining: int,
    drafter: Drafter | None,
    stats: GenerationStats,
) -> Iterator[int]:
    """``token`` is drawn but not yet part of ``history``; yield it and what follows."""
    ends = set(session.manifest.eos_ids)
    new = [token]
    while True:
        for token in new:
            history.append(token)
            stats.new_tokens += 1
            remaining -= 1
            yield token
            if token in ends or remaining == 0:
                return
        if session.room == 0:
            return
        began = time.perf_counter()
        draft = _propose(session, history, remaining, drafter)
        new = _speculate(session, history[-1], draft, sampler, stats) if draft else _step(session, token, sampler, stats)
        stats.decode_seconds += time.perf_counter() - began


def _propose(session: Session, history: list[int], remaining: int, drafter: Drafter | None) -> list[int]:
    """As many guesses as a block, the context and the tokens still wanted have room for."""
    limit = min(session.verify_len, session.room, remaining) - 1
    return drafter.propose(history, limit)[:limit] if drafter is not None and limit > 0 else []


def _step(session: Session, token: int, sampler: Sampler, stats: GenerationStats) -> list[int]:
    stats.decodes += 1
    return [sampler.draw(session.decode(token))]


def _speculate(session: Session, token: int, draft: list[int], sampler: Sampler, stats: GenerationStats) -> list[int]:
    """Verify ``token`` with the drafted ones behind it, commit what is right, and return the tokens that follow ``token``."""
    logits = session.verify([token, *draft])
    new = []
    for row, drafted in zip(logits, draft, strict=False):
        new.append(sampler.accept(row, drafted))
        if new[-1] != drafted:
            break
    else:
        new.append(sampler.draw(logits[-1]))
    accepted = len(new) - 1
    session.commit(1 + accepted)
    stats.verifies += 1
    stats.proposed += len(draft)
    stats.accepted += accepted
    stats.rollbacks += accepted < len(draft)
    stats.spans.append((stats.new_tokens, accepted, len(draft) - accepted))
    return new
