"""Draft models and masks in the native core: the text is plain decoding's, and what a mask leaves is Python's too."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from modulus import mask_by
from store import demo_folder
from torch import Tensor

from hybridge.cache.errors import ArtifactError, DraftError, TokenError, UsageError
from hybridge.runtime import GenerationStats, Sampling, Session, open_artifact
from hybridge.runtime.core import Model
from hybridge.runtime.core.constraint import Constraint
from hybridge.runtime.native import NativeSession

pytestmark = pytest.mark.slow

CODE = [*b"class Point:\n    def __init__(self, x, y):\n        self.x = x\n"]
SAMPLINGS = [Sampling(seed=0), Sampling(temperature=0.8, top_k=30, repetition_penalty=1.1, seed=5)]


@pytest.fixture(scope="module")
def demo() -> Path:
    return demo_folder()


@pytest.fixture
def native(demo: Path) -> NativeSession:
    return NativeSession.load(demo / "hybridge-demo")


@pytest.fixture
def draft(demo: Path) -> Model:
    return Model(open_artifact(demo / "hybridge-demo-draft"))


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "drawn"])
def test_the_text_is_plain_decodings(native: NativeSession, draft: Model, sampling: Sampling) -> None:
    """Turns that go on, start anew and go back, and texts that its context does not hold."""
    stats = GenerationStats()
    for block in (None, 2, 4, 7):
        for prompt in (CODE, CODE[:9], CODE * 5):
            native.reset()
            plain = list(native.generate(prompt, max_new_tokens=60, sampling=sampling))
            native.reset()
            drafted = native.generate(
                prompt, max_new_tokens=60, block_length=block, sampling=sampling, stats=stats, drafter=draft
            )
            assert list(drafted) == plain
            assert block is None or stats.verifies > 5
            assert block is None or stats.accepted > 5


def test_what_does_not_fit_is_refused(demo: Path, native: NativeSession, artifact: Path, tmp_path: Path) -> None:
    with pytest.raises(DraftError, match="tokenizer"):
        native.generate(CODE, max_new_tokens=3, drafter=Model(open_artifact(artifact)))
    with pytest.raises(ArtifactError):
        Model(open_artifact(tmp_path / "none"))
    closed = Model(open_artifact(demo / "hybridge-demo-draft"))
    closed.close()
    with pytest.raises(UsageError, match="closed"):
        native.generate(CODE, max_new_tokens=3, drafter=closed)
    assert native.length == 0


class Modulus(Constraint):
    """Lets those tokens come that add up with the text's length to a multiple of ``modulus``; ``mask_by`` is the core's."""

    def __init__(self, modulus: int, place: int) -> None:
        self.modulus, self.place = modulus, place

    def mask(self, logits: Tensor) -> Tensor:
        return torch.where((torch.arange(len(logits)) + self.place) % self.modulus == 0, logits, float("-inf"))

    def take(self, token: int) -> None:
        self.place += 1

    def forced(self) -> list[int]:
        return []

    def fitting(self, tokens: Sequence[int]) -> int:
        return len(tokens)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "drawn"])
def test_a_mask_decides_what_may_come(demo: Path, native: NativeSession, draft: Model, sampling: Sampling) -> None:
    python = Session.load(demo / "hybridge-demo")
    constrained = python.generate(CODE, max_new_tokens=60, sampling=sampling, constraint=Modulus(3, len(CODE)))
    wanted = list(constrained)
    assert all((token + len(CODE) + i) % 3 == 0 for i, token in enumerate(wanted))
    stats = GenerationStats()
    for drafter in ("lookup", "own", draft):
        native.reset()
        masked = native.generate(
            CODE, max_new_tokens=60, block_length=4, sampling=sampling, mask=mask_by(3), stats=stats, drafter=drafter
        )
        assert list(masked) == wanted
        assert stats.rollbacks > 0


def test_a_mask_that_leaves_nothing_is_refused(native: NativeSession) -> None:
    with pytest.raises(TokenError):
        native.generate(CODE, max_new_tokens=3, mask=mask_by(10**9))
    native.reset()
    assert len(list(native.generate(CODE, max_new_tokens=3))) == 3
