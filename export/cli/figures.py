"""Measure the figures of ``hybridge bench``, each beside its target."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hybridge.runtime.binding.drafters import Drafter, PromptLookup
from hybridge.runtime.binding.sampling import Sampling
from hybridge.runtime.binding.session import Session
from hybridge.runtime.cli.console import out, table
from hybridge.runtime.measure import PLAIN, Outcome, contest, sampling_p_value


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A measured value beside its target."""

    what: str
    target: str
    measured: str
    reached: bool


def print_figures(results: list[Figure]) -> None:
    """Print the figures beside their targets."""
    grid = table("Figures", "what", "target", "measured", "")
    for figure in results:
        grid.add_row(figure.what, figure.target, figure.measured, "[green]✓[/]" if figure.reached else "[bold red]✗[/]")
    out.print(grid)


# Figures of speculation, measured on one target with all its drafters


AUTO = "auto"
"""The drafter that is several: those of the target's own session."""
CODE, RANDOM, FIXED = "Code, greedy", "Random bytes", "Code, greedy, always the longest block"
HOT = Sampling(temperature=100.0)
"""All tokens are about equally likely: text that no drafter can predict."""
FEW = Sampling(temperature=1.0, top_k=6)
"""A small vocabulary, so that every cell of the test gets draws."""
LONG_TURN, RANDOM_PROMPTS = 1500, 16

Notify = Callable[[int, int], None]
SURELY_OTHER = 1e-5
"""A p-value below which an acceptance rule is surely broken: chance alone does not reach it."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """The models to measure: a target with its drafters by name.

    sessions: those of drafters in another artifact of the same target. draft: the artifact of the draft model.
    """

    session: Session
    ways: Mapping[str, Drafter | None]
    sessions: Mapping[str, Session]
    prompts: list[list[int]]
    draft: Path | None

    @property
    def room(self) -> int:
        """Return the number of new tokens for which every prompt leaves room, at most 1,000."""
        return min(1000, self.session.max_seq_len - max(len(prompt) for prompt in self.prompts))


@dataclass(kw_only=True)
class BenchReport:
    """Outcomes by text and drafter, p-values of the sampling by drafter, and the median ms of going back a long turn.

    apart: drafters in an artifact of their own, which the drafter that is several does not have.
    """

    outcomes: dict[str, dict[str, Outcome]] = field(default_factory=dict)
    sampling: dict[str, float] = field(default_factory=dict)
    samples: int = 0
    undo_ms: float = 0.0
    undone: int = 0
    apart: frozenset[str] = frozenset()

    @property
    def lossless(self) -> bool:
        """Return whether no token and no distribution differs; one of 100 fair samplings has p < 0.01."""
        return not self._sum("differing") and all(p > SURELY_OTHER for p in self.sampling.values())

    def best(self, text: str) -> tuple[str, float]:
        """Return the fastest drafter on a text, and its speed relative to plain decoding."""
        return max(self._times(text), key=lambda each: each[1])

    def worst(self, text: str) -> tuple[str, float]:
        """Return the slowest drafter on a text, and its speed relative to plain decoding."""
        return min(self._times(text), key=lambda each: each[1])

    def _times(self, text: str) -> list[tuple[str, float]]:
        outcomes = self.outcomes[text]
        return [(name, each.times(outcomes[PLAIN])) for name, each in outcomes.items() if name != PLAIN]

    def auto_of_best(self, text: str) -> float:
        """Return the speed of the drafter that is several relative to the best of its parts, plain decoding included."""
        outcomes = self.outcomes[text]
        names = [name for name in outcomes if name not in self.apart and name != AUTO]
        return outcomes[AUTO].times(outcomes[max(names, key=lambda name: outcomes[name].times(outcomes[PLAIN]))])

    def overhead(self) -> float | None:
        """Return the seconds of commits and bookkeeping for each second of verifying; None if too few tokens were generated."""
        total = self.outcomes[FIXED]["prompt lookup"].total
        useful = total.draft_seconds + total.decode_seconds + total.verify_seconds
        return (total.new_seconds - useful) / total.verify_seconds if total.verifies else None

    def figures(self) -> list[Figure]:
        """Return the figures beside their targets."""
        best, speed = self.best(CODE)
        worst, random_speed = self.worst(RANDOM)
        overhead, p = self.overhead(), min(self.sampling.values())
        tokens = sum(each.total.new_tokens for name, each in self.outcomes[CODE].items() if name != PLAIN)
        return [
            Figure(what=f"code, {best} vs plain", target="≥ 2.5×", measured=f"{speed:.2f}×", reached=speed >= 2.5),
            *(
                Figure(
                    what=f"{text.lower()}, {AUTO} vs the best of its parts",
                    target="≥ 0.97×", measured=f"{self.auto_of_best(text):.2f}×", reached=self.auto_of_best(text) >= 0.97,
                )
                for text in (CODE, RANDOM)
                if AUTO in self.outcomes[text]
            ),
            Figure(
                what=f"random bytes, worst drafter ({worst}) vs plain",
                target="≥ 0.97×", measured=f"{random_speed:.2f}×", reached=random_speed >= 0.97,
            ),
            *(
                Figure(what="commit + bookkeeping, of a verify", target="≤ 3 %", measured=f"{each:.1%}", reached=each <= 0.03)
                for each in (overhead,)
                if each is not None
            ),
            Figure(
                what=f"tokens other than plain greedy decoding's, of {tokens:,}",
                target="0", measured=f"{self._sum('differing')} ({self._sum('ties')} ties)", reached=not self._sum("differing"),
            ),
            Figure(
                what=f"sampling, worst p of chi-square over {self.samples:,} tokens each",
                target="> 0.01", measured=f"{p:.2f}", reached=p > 0.01,
            ),
            Figure(
                what=f"going back a turn of {self.undone:,} tokens",
                target="≤ 5 ms", measured=f"{self.undo_ms:.2f} ms", reached=self.undo_ms <= 5,
            ),
        ]  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """Return everything, for JSON."""
        ways = {
            text: {name: _measured(each, outcomes[PLAIN]) for name, each in outcomes.items()}
            for text, outcomes in self.outcomes.items()
        }
        figures = [vars(figure) for figure in self.figures()]
        return {
            "texts": ways,
            "sampling": self.sampling,
            "undo_ms": self.undo_ms,
            "figures": figures,
            "lossless": self.lossless,
        }

    def _sum(self, name: str) -> int:
        return sum(getattr(each, name) for outcomes in self.outcomes.values() for each in outcomes.values())


def _measured(outcome: Outcome, plain: Outcome) -> dict[str, Any]:
    speed = {"tokens_per_second": outcome.tokens_per_second, "times_plain": outcome.times(plain)}
    return {**outcome.total.to_dict(), **speed, "differing": outcome.differing, "ties": outcome.ties}


def measure(subject: Subject, tokens: int, samples: int, notify: Notify) -> BenchReport:
    """Generate ``tokens`` tokens of code over all drafters, some random bytes, and draw ``samples`` tokens for each test."""
    report, session = BenchReport(samples=samples, apart=frozenset(subject.sessions)), subject.session
    drafters = len(subject.ways) - 1
    new_tokens = min(subject.room, max(2, -(-tokens // (drafters * len(subject.prompts)))))
    count = min(len(subject.prompts), -(-tokens // (drafters * new_tokens)))
    total, steps = count * (drafters + 1) + RANDOM_PROMPTS * (drafters + 1) + 2 * 2 + drafters + 1, itertools.count(1)

    def done() -> None:
        notify(next(steps), total)

    rng = random.Random(0)
    lengths = [min(64, new_tokens)] * RANDOM_PROMPTS
    noise = [[rng.randrange(min(256, session.vocab_size)) for _ in range(length)] for length in lengths]
    for text, prompts, sampling in ((CODE, subject.prompts[:count], Sampling()), (RANDOM, noise, HOT)):
        report.outcomes[text] = contest(
            session, subject.ways, prompts, new_tokens=new_tokens, sampling=sampling, sessions=subject.sessions, notify=done
        )
    longest: dict[str, Drafter | None] = {PLAIN: None, "prompt lookup": PromptLookup()}
    report.outcomes[FIXED] = contest(
        session, longest, subject.prompts[:2], new_tokens=new_tokens, sampling=Sampling(),
        block_length=session.verify_len, notify=done,
    )  # fmt: skip
    report.sampling = check_sampling(subject, samples, done)
    report.undone = min(LONG_TURN, session.max_seq_len - 1)
    report.undo_ms = undo_ms(session, report.undone)
    return report


def check_sampling(subject: Subject, samples: int, done: Callable[[], None]) -> dict[str, float]:
    """Return p-values of the sampling without a drafter, and with models that draw their draft tokens."""
    text = tuple(subject.prompts[0][:40])
    drafts = {PLAIN: None, "the target as its own draft model": subject.session}
    if subject.draft is not None:
        drafts["draft model"] = Session.load(subject.draft)
    found = {}
    for name, draft in drafts.items():
        found[name] = sampling_p_value(subject.session, draft, text, FEW, samples)[0]
        done()
    return found


def undo_ms(session: Session, tokens: int) -> float:
    """Return the median ms of going back over a turn of ``tokens`` by a snapshot."""
    session.reset()
    session.prefill([1])
    session.snapshot(0)

    def turn() -> float:
        session.prefill([1] * (tokens - 1))
        began = time.perf_counter()
        session.restore(0)
        return 1e3 * (time.perf_counter() - began)

    return sorted(turn() for _ in range(5))[2]
