"""Sampling in the native core: distributed as Python's, and a seed's text is Python's, with every drafter."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from hybridge.cache.errors import UsageError
from hybridge.export.checks.speculation import p_value
from hybridge.runtime import Context, GenerationStats, Proposal, Sampler, Sampling, Session
from hybridge.runtime.native import NativeSession

pytestmark = pytest.mark.slow

PROMPT = [5, 6, 7, 8, 9, 5, 6, 7, 8, 9, 5, 6]
DRAWS = 3000


@pytest.fixture(scope="module")
def session(artifact: Path) -> NativeSession:
    return NativeSession.load(artifact)


@pytest.fixture(scope="module")
def python(artifact: Path) -> Session:
    return Session.load(artifact)


SAMPLINGS = [
    Sampling(temperature=0.7, top_k=8),
    Sampling(temperature=3.0),
    Sampling(temperature=1.0, top_p=0.6),
    Sampling(temperature=1.5, min_p=0.2),
    Sampling(temperature=1.0, top_k=12, repetition_penalty=2.5),
    Sampling(temperature=1.2, top_k=20, top_p=0.8, min_p=0.05, repetition_penalty=0.5),
]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_the_text_of_a_seed_is_pythons(session: NativeSession, python: Session, sampling: Sampling) -> None:
    for seed in (0, 7, -1, 2**64 - 1, 2**65 + 3):
        python.reset()
        session.reset()
        seeded = replace(sampling, seed=seed)
        wanted = list(python.generate(PROMPT, max_new_tokens=40, sampling=seeded))
        assert list(session.generate(PROMPT, max_new_tokens=40, sampling=seeded)) == wanted


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_tokens_are_distributed_as_pythons(session: NativeSession, python: Session, sampling: Sampling) -> None:
    python.reset()
    exact = Sampler(sampling).distribution(python.prefill(PROMPT), PROMPT)
    session.reset()
    session.prefill(PROMPT[:-1])
    session.snapshot(0)
    counts: Counter[tuple[int, ...]] = Counter()
    for seed in range(DRAWS):
        session.restore(0)
        counts[tuple(session.generate(PROMPT[-1:], max_new_tokens=1, sampling=replace(sampling, seed=seed)))] += 1
    expected = {(token,): float(p) for token, p in enumerate(exact) if p > 0}
    assert p_value(counts, expected, DRAWS) > 1e-3


def test_the_places_of_a_text_have_draws_of_their_own(session: NativeSession) -> None:
    """At such a heat every token is as likely as any other, at each place of each text."""
    counts: Counter[tuple[int, ...]] = Counter()
    for seed in range(80):
        session.reset()
        tokens = list(session.generate(PROMPT, max_new_tokens=40, sampling=Sampling(temperature=1e6, seed=seed)))
        counts.update((token,) for token in tokens)
    draws, size = sum(counts.values()), session.vocab_size
    assert draws > 1500
    assert p_value(counts, {(token,): 1 / size for token in range(size)}, draws) > 1e-3


class Knowing:
    """Proposes what will come, as another run has shown, with one token spoilt at a place that moves on."""

    needs_hidden = is_free = False

    def __init__(self, text: list[int]) -> None:
        self.text, self.spoilt = text, 0

    def propose(self, context: Context, limit: int) -> Proposal:
        start = len(context.tokens)
        guesses = self.text[start : start + limit]
        if self.spoilt < len(guesses):
            guesses[self.spoilt] = (guesses[self.spoilt] + 1) % 90
        self.spoilt = (self.spoilt + 1) % (limit + 1)
        return Proposal(guesses)


@pytest.mark.parametrize("seed", [0, 3, 2**64 - 1])
def test_text_of_a_seed_is_the_same_with_every_drafter(session: NativeSession, seed: int) -> None:
    sampling = Sampling(temperature=0.9, top_p=0.9, repetition_penalty=1.2, seed=seed)
    session.reset()
    plain = list(session.generate(PROMPT, max_new_tokens=60, sampling=sampling))
    session.reset()
    assert list(session.generate(PROMPT, max_new_tokens=60, sampling=sampling, drafter="lookup")) == plain
    for block in (2, 5):
        stats, drafter = GenerationStats(), Knowing([*PROMPT, *plain])
        session.reset()
        drafted = session.generate(
            PROMPT, max_new_tokens=60, sampling=sampling, drafter=drafter, block_length=block, stats=stats
        )
        assert list(drafted) == plain
        assert stats.accepted > 10
        assert stats.rollbacks > 10
        assert session.length == len(PROMPT) + len(plain) - 1


def test_another_seed_is_another_text(session: NativeSession) -> None:
    texts = set()
    for seed in range(5):
        session.reset()
        texts.add(tuple(session.generate(PROMPT, max_new_tokens=20, sampling=Sampling(temperature=2.0, seed=seed))))
    assert len(texts) == 5


def test_without_a_seed_one_is_drawn(session: NativeSession) -> None:
    texts = set()
    for _ in range(3):
        session.reset()
        texts.add(tuple(session.generate(PROMPT, max_new_tokens=20, sampling=Sampling(temperature=2.0))))
    assert len(texts) == 3


def test_a_penalty_without_a_temperature_is_greedy_by_what_it_leaves(session: NativeSession, python: Session) -> None:
    sampling = Sampling(repetition_penalty=3.0, seed=1)
    session.reset()
    python.reset()
    wanted = list(python.generate(PROMPT, max_new_tokens=40, sampling=sampling))
    assert list(session.generate(PROMPT, max_new_tokens=40, sampling=sampling)) == wanted
    session.reset()
    assert list(session.generate(PROMPT, max_new_tokens=40)) != wanted


WRONG = [
    {"temperature": -1},
    {"temperature": 1e9},
    {"temperature": 1e-9},
    {"temperature": 1, "top_p": 1.5},
    {"temperature": 1, "min_p": -0.5},
    {"temperature": 1, "min_p": 2},
    {"temperature": 1, "repetition_penalty": -1},
    {"temperature": float("nan")},
]


@pytest.mark.parametrize("values", WRONG, ids=str)
def test_what_makes_no_distribution_is_refused(session: NativeSession, values: dict[str, float]) -> None:
    """Python's class refuses it, and so does the core, which takes numbers from others too."""
    with pytest.raises(UsageError):
        Sampling(**values)
    session.reset()
    unchecked = Sampling()
    for name, value in values.items():
        object.__setattr__(unchecked, name, value)
    with pytest.raises(UsageError):
        session.generate(PROMPT, max_new_tokens=3, sampling=unchecked)
    assert session.length == 0
