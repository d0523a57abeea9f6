"""Drafters that draw, in the native core: the same noise gives Python's tokens, distributed as the model says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import pytest
from modulus import mask_by
from store import demo_folder

from hybridge.export.checks.speculation import DEPTH, exact, p_value, remembered
from hybridge.runtime import Drafter, GenerationStats, Sampling, Session, open_artifact
from hybridge.runtime.core import Model
from hybridge.runtime.core.drafters import BlockDrafter, DraftModel
from hybridge.runtime.native import NativeDrafter, NativeSession

pytestmark = pytest.mark.slow

CODE = [*b"class Point:\n    def __init__(self, x, y):\n        self.x = x\n"]
SAMPLINGS = [
    Sampling(temperature=0.8),
    Sampling(temperature=1.2, top_k=20, top_p=0.9, repetition_penalty=1.1),
    Sampling(temperature=1.5, min_p=0.1),
]
UNSURE = [*b"import os\n\ndef read_"]
"""Behind it model and drafter disagree, so that a wrong rule shows."""
DRAWS = 1500


@dataclass
class Pair:
    """One drafter in both, over sessions of the same artifact."""

    drafter: NativeDrafter
    native: NativeSession
    python: Session
    pythons: Drafter


PAIRS: dict[str, tuple[Callable[[Path], NativeDrafter], str, Callable[[Path, Session], Drafter]]] = {
    "draft model": (
        lambda folder: Model(open_artifact(folder / "hybridge-demo-draft")),
        "hybridge-demo",
        lambda folder, target: DraftModel(Session.load(folder / "hybridge-demo-draft"), target),
    ),
    "dspark": (lambda _: "own", "hybridge-demo-dspark", lambda _, target: BlockDrafter(target)),
}


@pytest.fixture(scope="module", params=PAIRS)
def pair(request: pytest.FixtureRequest) -> Pair:
    """Trained ones, of whose tokens many are accepted."""
    (drafter, name, make), folder = PAIRS[request.param], demo_folder()
    python = Session.load(folder / name)
    return Pair(drafter(folder), NativeSession.load(folder / name), python, make(folder, python))


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_the_same_noise_gives_pythons_tokens(pair: Pair, sampling: Sampling) -> None:
    for noise in range(4):
        for block in (2, 4, 7):
            wanted, counted = GenerationStats(), GenerationStats()
            pair.python.reset()
            with mock.patch("hybridge.runtime.core.drafters.secrets.randbits", return_value=noise):
                drawn = pair.python.generate(
                    CODE, max_new_tokens=50, drafter=pair.pythons, sampling=sampling, block_length=block, stats=wanted
                )
            tokens = list(drawn)
            pair.native.reset()
            natively = pair.native.generate(
                CODE, max_new_tokens=50, drafter=pair.drafter, sampling=sampling, noise=noise, block_length=block, stats=counted
            )
            assert list(natively) == tokens
            assert (counted.proposed, counted.accepted, counted.verifies) == (wanted.proposed, wanted.accepted, wanted.verifies)
            assert 0 < counted.accepted < counted.proposed


def test_tokens_are_distributed_as_the_model_says(pair: Pair) -> None:
    """Blocks of four, of whose tokens the first three are counted: rejected ones, accepted ones and those behind them."""
    sampling, native, stats, accepted = Sampling(temperature=1.5, top_k=4), pair.native, GenerationStats(), 0
    expected: dict[tuple[int, ...], float] = {}
    for way, chance in exact(remembered(pair.python), tuple(UNSURE), sampling).items():
        ended = until_end(way, pair.python.manifest.eos_ids)
        expected[ended] = expected.get(ended, 0.0) + chance
    native.reset()
    native.prefill(UNSURE[:-1])
    native.snapshot(0)
    counts: Counter[tuple[int, ...]] = Counter()
    for noise in range(DRAWS):
        native.restore(0)
        drawn = native.generate(
            UNSURE[-1:],
            max_new_tokens=DEPTH + 2,
            drafter=pair.drafter,
            sampling=sampling,
            noise=noise,
            block_length=4,
            stats=stats,
        )
        counts[tuple(drawn)[:DEPTH]] += 1
        accepted += stats.accepted
    assert p_value(counts, expected, DRAWS) > 1e-3
    assert accepted > DRAWS / 2, "and more than as many are rejected"


def until_end(tokens: tuple[int, ...], ends: Collection[int]) -> tuple[int, ...]:
    return next((tokens[: i + 1] for i, token in enumerate(tokens) if token in ends), tokens)


def test_with_a_seed_they_propose_their_best(pair: Pair) -> None:
    """The text then is the same without a drafter."""
    native, sampling = pair.native, Sampling(temperature=0.8, seed=3)
    native.reset()
    plain = list(native.generate(CODE, max_new_tokens=50, sampling=sampling))
    native.reset()
    drafted = native.generate(CODE, max_new_tokens=50, drafter=pair.drafter, sampling=sampling, block_length=4)
    assert list(drafted) == plain


def test_a_mask_decides_what_of_it_may_come(pair: Pair) -> None:
    native, sampling = pair.native, Sampling(temperature=1.0)
    for noise in range(5):
        native.reset()
        masked = native.generate(
            CODE, max_new_tokens=40, drafter=pair.drafter, sampling=sampling, noise=noise, block_length=4, mask=mask_by(3)
        )
        assert all((token + len(CODE) + i) % 3 == 0 for i, token in enumerate(masked))
