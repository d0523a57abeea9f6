"""Measure speculation: the same texts generated in several ways, interleaved, and compared token by token."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from statistics import median

from hybridge.runtime.core.drafters import Drafter
from hybridge.runtime.core.sampling import Sampling
from hybridge.runtime.core.session import Session
from hybridge.runtime.core.statistics import GenerationStats

PLAIN = "plain"
TIE = 1e-5
"""Two best logits closer than this share of the largest are a tie, which rounding may decide either way."""

Ways = Mapping[str, Drafter | None]
Notify = Callable[[], None]


@dataclass(kw_only=True)
class Outcome:
    """One way of generating, over all prompts. speeds: tokens/s of each; differing and ties: tokens other than plain's."""

    total: GenerationStats = field(default_factory=GenerationStats)
    speeds: list[float] = field(default_factory=list)
    differing: int = 0
    ties: int = 0

    @property
    def tokens_per_second(self) -> float:
        """Return new tokens per second, all but the first of each prompt, which the prefill pays for."""
        return self.total.new_tokens / self.total.new_seconds if self.total.new_seconds else 0.0

    def times(self, plain: Outcome) -> float:
        """Return how many times faster than ``plain`` it was: the median over the prompts, which ran in all ways in a row."""
        return median(own / other for own, other in zip(self.speeds, plain.speeds, strict=True) if other)

    def add(self, stats: GenerationStats) -> None:
        self.speeds.append(stats.tokens_per_second)
        for each in fields(stats):
            setattr(self.total, each.name, getattr(self.total, each.name) + getattr(stats, each.name))
        self.total.new_tokens -= 1


def contest(
    session: Session,
    ways: Ways,
    prompts: Sequence[Sequence[int]],
    *,
    new_tokens: int,
    sampling: Sampling,
    block_length: int | None = None,
    sessions: Mapping[str, Session] | None = None,
    notify: Notify = lambda: None,
) -> dict[str, Outcome]:
    """Continue each prompt in each way, one after the other; ``ways`` names plain decoding ``PLAIN`` and has it first.

    sessions: of the ways that have one of their own, over an artifact of the same model with another drafter. Tokens are
    compared where the sampling is greedy. notify is called after each generation.
    """
    outcomes = {name: Outcome() for name in ways}
    for prompt in prompts:
        plain: list[int] = []
        for name, drafter in ways.items():
            own = (sessions or {}).get(name, session)
            tokens, stats = _generate(own, prompt, drafter, new_tokens, sampling, block_length)
            outcomes[name].add(stats)
            plain = plain or tokens
            if sampling.temperature == 0:
                _compare(session, prompt, plain, tokens, outcomes[name])
            notify()
    return outcomes


def _generate(
    session: Session, prompt: Sequence[int], drafter: Drafter | None, new_tokens: int, sampling: Sampling, block: int | None
) -> tuple[list[int], GenerationStats]:
    stats = GenerationStats()
    session.reset()
    options = {"drafter": drafter, "block_length": block if drafter is not None else None}
    return list(session.generate(prompt, max_new_tokens=new_tokens, sampling=sampling, stats=stats, **options)), stats  # type: ignore[arg-type]


def _compare(session: Session, prompt: Sequence[int], plain: list[int], tokens: list[int], outcome: Outcome) -> None:
    """Count what differs; behind a tie two texts are two texts, so the comparison of this prompt ends there."""
    first = next((i for i, pair in enumerate(zip(plain, tokens, strict=False)) if pair[0] != pair[1]), None)
    if first is None:
        outcome.differing += abs(len(plain) - len(tokens))
        return
    session.reset()
    logits = session.prefill([*prompt, *plain[:first]])
    best, second = logits.topk(2).values.tolist()
    if best - second <= TIE * float(logits.abs().max()):
        outcome.ties += 1
    else:
        outcome.differing += len(plain) - first
