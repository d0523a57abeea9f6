"""``scripts/trust soak``: that it sees what is wrong, plays the same again, and goes on where it was interrupted."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from itertools import islice
from pathlib import Path

import pytest
import torch
from campaigns.soak.__main__ import Journal
from campaigns.soak.program import Round, nearby, play_round
from campaigns.soak.subjects import GROUP, SUBJECTS, WIDER
from tiny import tiny_config, tiny_model
from torch import Tensor

from hybridge.export.check.oracle import load_oracle, uncached
from hybridge.export.check.random_program import Oracle
from hybridge.export.layers import WithoutWeight
from hybridge.export.quantize.quantize import quantize
from hybridge.runtime import ExportOptions, Model, Session, open_artifact
from hybridge.runtime.binding.session import Logits

ROUNDS = 6
EVERY = {"prefill", "decode", "verify", "commit", "snapshot", "restore", "save", "load", "generate"}


@pytest.mark.slow
def test_a_slice_of_the_soak(kernels_artifact: Path, checkpoint: Path, tmp_path: Path) -> None:
    oracle = load_oracle(checkpoint, open_artifact(kernels_artifact).manifest)
    model = Model.open(open_artifact(kernels_artifact))
    sessions = [Session(model), Session(model), Session.load(kernels_artifact)]
    rounds = [play_round(sessions, oracle, 0, number, tmp_path) for number in range(ROUNDS)]
    assert [each.error for each in rounds] == [""] * ROUNDS
    assert set().union(*(each.operations for each in rounds)) >= EVERY
    assert 0 < max(each.worst for each in rounds) < 1


class Inexact(Session):
    """A session whose decodes are a little off."""

    def decode(self, token: int) -> Logits:
        return super().decode(token) * 1.001


class Lossy(Session):
    """A session that forgets what its snapshot slots hold when it loads a state."""

    def load_state(self, path: str | Path) -> int:
        length = super().load_state(path)
        self.resume(self.checkpoint())
        return length


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Inexact, Lossy])
def test_a_session_that_is_wrong_is_found(
    kernels_artifact: Path, checkpoint: Path, tmp_path: Path, kind: type[Session]
) -> None:
    oracle = load_oracle(checkpoint, open_artifact(kernels_artifact).manifest)
    sessions = [kind.load(kernels_artifact) for _ in range(2)]
    errors = [play_round(sessions, oracle, 0, number, tmp_path).error for number in range(ROUNDS)]
    assert any(errors)
    assert all("after:" in each for each in errors if each), "an error shows what led to it"


@pytest.mark.slow
def test_what_a_model_nearby_gives_is_a_tie(kernels_artifact: Path, checkpoint: Path, tmp_path: Path) -> None:
    """Of a right kimi_linear 1 round of 67 counted as wrong: two of its experts had the same score."""
    oracle = load_oracle(checkpoint, open_artifact(kernels_artifact).manifest)
    sessions = [Session.load(kernels_artifact)]

    def another(tokens: Sequence[int]) -> Tensor:
        return oracle(tokens) * 1.01

    def right() -> Generator[Oracle]:
        yield from (another, oracle)

    def wrong() -> Generator[Oracle]:
        yield another

    played = play_round(sessions, another, 0, 0, tmp_path, right)
    assert (played.error, played.ties) == ("", 1)
    assert "an error of" in play_round(sessions, another, 0, 0, tmp_path, wrong).error


def test_models_nearby_differ_a_little_and_leave_the_model_as_it_was() -> None:
    model = tiny_model(tiny_config("kimi_linear"))
    own = uncached(model)(range(9))
    others = [each(range(9)) for each in islice(nearby(model), 3)]
    assert 0 < max(float((each - own).abs().max()) for each in others) < 1e-3 * float(own.abs().max())
    assert not torch.equal(others[0], others[1])
    assert torch.equal(uncached(model)(range(9)), own)


def test_a_journal_goes_on_where_it_was(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal", seed=1, code="a")
    assert journal.next("x") == 0
    for number in range(3):
        journal.add("x", Round(number, worst=0.5, error="wrong" * (number == 1)))
    again = Journal(tmp_path / "journal", seed=1, code="a")
    assert (again.next("x"), again.subjects["x"].failures) == (3, ["round 1: wrong"])
    assert again.table() == journal.table()
    assert Journal(tmp_path / "journal", seed=2, code="a").subjects == {}
    assert Journal(tmp_path / "journal", seed=1, code="b").subjects == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, each in SUBJECTS.items() if each.quantize])
def test_each_rounded_subject_can_be_rounded(name: str) -> None:
    """Weights whose columns the groups of a scale do not divide ended a soak's worker before its first operation."""
    subject = SUBJECTS[name]
    options = ExportOptions(quantize=subject.quantize, group_size=GROUP, kernels="hybridge")
    model = tiny_model(tiny_config(subject.family, **WIDER.get(subject.family, {})))
    quantize(model, options)
    assert any(isinstance(each, WithoutWeight) for each in model.modules())
