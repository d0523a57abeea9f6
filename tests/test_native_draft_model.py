"""Draft models and masks in the native harness: the text is plain decoding's, and what a mask leaves is Python's too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import get_args

import pytest
import torch
from store import demo_folder
from torch import Tensor

from hybridge.cache.errors import DraftError, TokenError
from hybridge.runtime import GenerationStats, Sampling, Session, open_artifact
from hybridge.runtime.generation.constraint import Constraint
from hybridge.runtime.native import NativeDrafter, NativeProcess, NativeSession

pytestmark = pytest.mark.slow

CODE = [*b"class Point:\n    def __init__(self, x, y):\n        self.x = x\n"]
SAMPLINGS = [Sampling(seed=0), Sampling(temperature=0.8, top_k=30, repetition_penalty=1.1, seed=5)]


@pytest.fixture(scope="module")
def demo() -> Path:
    return demo_folder()


@pytest.fixture
def native(demo: Path) -> Iterator[NativeSession]:
    with NativeProcess(open_artifact(demo / "hybridge-demo")) as process:
        yield NativeSession(process)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "drawn"])
def test_the_text_is_plain_decodings(demo: Path, native: NativeSession, sampling: Sampling) -> None:
    """Turns that go on, start anew and go back, and texts that its context does not hold."""
    native.sample(sampling)
    native.use_draft_model(demo / "hybridge-demo-draft/model.pte")
    stats = GenerationStats()
    for block in (None, 2, 4, 7):
        for prompt in (CODE, CODE[:9], CODE * 5):
            native.reset()
            plain = list(native.generate(prompt, max_new_tokens=60))
            native.reset()
            assert list(native.generate_by("model", prompt, max_new_tokens=60, block_length=block, stats=stats)) == plain
            assert block is None or stats.verifies > 5
            assert block is None or stats.accepted > 5


def test_what_does_not_fit_is_refused(demo: Path, native: NativeSession, artifact: Path, tmp_path: Path) -> None:
    with pytest.raises(DraftError):
        native.use_draft_model(artifact / "model.pte")  # another vocabulary
    with pytest.raises(DraftError):
        native.use_draft_model(tmp_path / "none")
    with pytest.raises(TokenError):
        native.generate_by("model", CODE, max_new_tokens=3)


class Modulus(Constraint):
    """The constraint of ``NativeSession.set_mask``."""

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
def test_a_mask_decides_what_may_come(demo: Path, native: NativeSession, sampling: Sampling) -> None:
    python = Session.load(demo / "hybridge-demo")
    constrained = python.generate(CODE, max_new_tokens=60, sampling=sampling, constraint=Modulus(3, len(CODE)))
    wanted = list(constrained)
    assert all((token + len(CODE) + i) % 3 == 0 for i, token in enumerate(wanted))
    native.sample(sampling)
    native.set_mask(3)
    native.use_draft_model(demo / "hybridge-demo-draft/model.pte")
    stats = GenerationStats()
    for drafter in get_args(NativeDrafter):
        native.reset()
        assert list(native.generate_by(drafter, CODE, max_new_tokens=60, block_length=4, stats=stats)) == wanted
        assert stats.rollbacks > 0


def test_a_mask_that_leaves_nothing_is_refused(native: NativeSession) -> None:
    native.set_mask(10**9)
    with pytest.raises(TokenError):
        native.generate(CODE, max_new_tokens=3)
    native.set_mask(0)
    native.reset()
    assert len(list(native.generate(CODE, max_new_tokens=3))) == 3
