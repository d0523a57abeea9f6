"""Sampling in the native harness: distributed as Python's, and a seed's text is Python's, with every drafter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hybridge.cache.errors import TokenError, UsageError
from hybridge.runtime import Context, GenerationStats, Proposal, Sampler, Sampling, Session, open_artifact
from hybridge.runtime.checks.sampling_check import p_value
from hybridge.runtime.native import NativeProcess, NativeSession

pytestmark = pytest.mark.slow

PROMPT = [5, 6, 7, 8, 9, 5, 6, 7, 8, 9, 5, 6]
DRAWS = 3000


@pytest.fixture(scope="module")
def session(artifact: Path) -> Iterator[NativeSession]:
    with NativeProcess(open_artifact(artifact)) as process:
        yield NativeSession(process)


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
        session.sample(replace(sampling, seed=seed % 2**64))
        wanted = list(python.generate(PROMPT, max_new_tokens=40, sampling=replace(sampling, seed=seed)))
        assert list(session.generate(PROMPT, max_new_tokens=40)) == wanted


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
        session.sample(replace(sampling, seed=seed))
        counts[tuple(session.generate(PROMPT[-1:], max_new_tokens=1))] += 1
    expected = {(token,): float(p) for token, p in enumerate(exact) if p > 0}
    assert p_value(counts, expected, DRAWS) > 1e-3


def test_the_places_of_a_text_have_draws_of_their_own(session: NativeSession) -> None:
    """At such a heat every token is as likely as any other, at each place of each text."""
    counts: Counter[tuple[int, ...]] = Counter()
    for seed in range(80):
        session.reset()
        session.sample(Sampling(temperature=1e6, seed=seed))
        tokens = list(session.generate(PROMPT, max_new_tokens=40))
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
    session.sample(Sampling(temperature=0.9, top_p=0.9, repetition_penalty=1.2, seed=seed))
    session.reset()
    plain = list(session.generate(PROMPT, max_new_tokens=60))
    session.reset()
    assert list(session.generate_by("lookup", PROMPT, max_new_tokens=60)) == plain
    for block in (2, 5):
        stats, drafter = GenerationStats(), Knowing([*PROMPT, *plain])
        session.reset()
        drafted = session.generate(PROMPT, max_new_tokens=60, drafter=drafter, block_length=block, stats=stats)
        assert list(drafted) == plain
        assert stats.accepted > 10
        assert stats.rollbacks > 10
        assert session.length == len(PROMPT) + len(plain) - 1


def test_another_seed_is_another_text(session: NativeSession) -> None:
    texts = set()
    for seed in range(5):
        session.reset()
        session.sample(Sampling(temperature=2.0, seed=seed))
        texts.add(tuple(session.generate(PROMPT, max_new_tokens=20)))
    assert len(texts) == 5


def test_a_penalty_without_a_temperature_is_greedy_by_what_it_leaves(session: NativeSession, python: Session) -> None:
    sampling = Sampling(repetition_penalty=3.0, seed=1)
    session.sample(sampling)
    session.reset()
    python.reset()
    wanted = list(python.generate(PROMPT, max_new_tokens=40, sampling=sampling))
    assert list(session.generate(PROMPT, max_new_tokens=40)) == wanted
    session.sample(Sampling(seed=0))
    session.reset()
    assert list(session.generate(PROMPT, max_new_tokens=40)) != wanted


@pytest.mark.parametrize(
    "words", ["-1 0 1 0 1", "1e9 0 1 0 1", "1 0 0 0 1", "1 0 1.5 0 1", "1 0 1 -0.5 1", "1 0 1 2 1", "1 0 1 0 0", "1e-9 0 1 0 1"]
)
def test_what_makes_no_distribution_is_refused(session: NativeSession, words: str) -> None:
    session.reset()
    session._ask("sampling", *words.split(), "seed", 1)
    with pytest.raises(TokenError):
        session.generate(PROMPT, max_new_tokens=3)
    assert session.length == 0


@pytest.mark.parametrize("words", ["", "1 0 1 0", "x 0 1 0 1 seed 1", "1 0 1 0 1 1", "1 0 1 0 1 seed x", "1 0 1 0 1 none 1"])
def test_what_is_no_sampling_is_refused(session: NativeSession, words: str) -> None:
    with pytest.raises(UsageError):
        session._ask("sampling", *words.split())
