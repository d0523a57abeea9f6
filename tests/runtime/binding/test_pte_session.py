"""Sessions over a real .pte of a small hybrid, compared with a model in PyTorch that has no cache."""

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from refusals import REFUSED, Inputs, refuses
from torch import Tensor

from hybridge.errors import CapacityError, ValidationError
from hybridge.export.check.oracle import load_oracle
from hybridge.export.check.random_program import Oracle, RandomProgram
from hybridge.export.check.validate import validate
from hybridge.export.cli.demo import committed_state
from hybridge.export.profile.program import ExecuTorchProgram
from hybridge.runtime import Session, open_artifact

PROMPT = [5, 6, 7, 8, 9, 5, 6, 7, 8, 9, 5, 6]


@pytest.fixture(scope="module")
def session(artifact: Path) -> Session:
    return Session.load(artifact)


@pytest.fixture(autouse=True)
def _empty(session: Session) -> None:
    session.reset()


@pytest.fixture(scope="module")
def oracle(checkpoint: Path, artifact: Path) -> Oracle:
    return load_oracle(checkpoint, Session.load(artifact).manifest)


@pytest.mark.slow
def test_random_programs_and_generation_agree_with_the_uncached_model(session: Session, oracle: Oracle) -> None:
    report = validate(session, oracle, programs=12, prompts=4, new_tokens=40, seed=1, notify=lambda done, total: None)
    assert report.passed, report
    assert report.operations.total() >= 480
    assert report.top1_agreement == 1.0
    assert report.generation.rollbacks > 0
    assert set(report.operations) == {"prefill", "decode", "verify", "commit", "snapshot", "restore", "reset"}


@pytest.mark.slow
def test_validation_fails_and_says_where_when_the_model_is_another_one(session: Session, oracle: Oracle) -> None:
    def other(tokens: Sequence[int]) -> Tensor:
        logits = oracle(tokens).clone()
        logits[20:] += 1e-3  # right for short texts, wrong from position 20 on
        return logits

    report = validate(session, other, programs=4, prompts=1, new_tokens=4, seed=1, notify=lambda done, total: None)
    assert report.first_divergence is not None
    assert report.first_divergence.position >= 20
    with pytest.raises(ValidationError, match="seed 1"):
        report.check()


@pytest.mark.slow
def test_a_rejection_runs_no_forward_and_changes_no_bit(session: Session) -> None:
    session.prefill(PROMPT)
    before = committed_state(session)
    session.verify([1] * session.verify_len)
    session.commit(0)
    assert before == committed_state(session)
    assert "aten::embedding.out" not in session.manifest.methods["commit"].operators


def test_that_bit_check_notices_a_commit(session: Session) -> None:
    session.prefill(PROMPT)
    before = committed_state(session)
    session.verify([1, 2])
    session.commit(1)
    assert any(before[name] != bits for name, bits in committed_state(session).items() if "conv" in name)


@pytest.fixture(scope="module")
def harness(artifact: Path) -> ExecuTorchProgram:
    """The program as a harness without our checks has it, in ExecuTorch's own Python package."""
    return ExecuTorchProgram(open_artifact(artifact))


@pytest.mark.parametrize(("name", "inputs"), REFUSED)
def test_the_program_itself_refuses(harness: ExecuTorchProgram, session: Session, name: str, inputs: Inputs) -> None:
    """A harness without our checks gets -1, or NaN logits, and the state as it was: lowering drops every assertion."""
    over = Session.over(harness, session.manifest)
    over.prefill(PROMPT)
    before = committed_state(over)
    assert refuses(harness, name, inputs)
    assert before == committed_state(over)


def test_the_core_runs_it_as_executorch_does(harness: ExecuTorchProgram, session: Session) -> None:
    over = Session.over(harness, session.manifest)
    assert np.array_equal(over.prefill(PROMPT), session.prefill(PROMPT))
    assert np.array_equal(over.verify([1, 2, 3]), session.verify([1, 2, 3]))
    assert over.commit(2) == session.commit(2)
    found = committed_state(over)
    assert {name: bits for name, bits in committed_state(session).items() if found[name] != bits and "_slots" not in name} == {}


def test_a_full_context_is_refused_by_session_and_program(harness: ExecuTorchProgram, session: Session) -> None:
    for each in (session, Session.over(harness, session.manifest)):
        each.prefill([1] * each.max_seq_len)
        before = committed_state(each)
        for call in (
            lambda each=each: each.decode(1),
            lambda each=each: each.verify([1]),
            lambda each=each: each.prefill([1, 2]),
        ):
            with pytest.raises(CapacityError, match="max_seq_len = 96"):
                call()
        assert before == committed_state(each)
    assert refuses(harness, "decode", [np.array([[1]])])
    assert before == committed_state(each)


def test_logits_belong_to_the_caller(session: Session) -> None:
    first = session.prefill([1, 2, 3])
    kept = first.copy()
    session.decode(4)
    assert np.array_equal(first, kept)


@pytest.mark.slow
def test_random_programs_reach_every_refusal(session: Session) -> None:
    """The validation would prove little if its programs never met the rules."""
    logs: set[str] = set()
    for seed in range(8):
        program = RandomProgram(session, random.Random(seed))
        program.play(60)
        logs |= {line.split()[0] for line in program.log if "refused" in line}
    assert logs >= {"prefill", "commit", "snapshot", "restore"}


def test_a_session_that_breaks_the_rules_is_noticed(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "snapshot", lambda slot: session.length)  # never refuses
    with pytest.raises(ValidationError, match="not refused, after: "):
        RandomProgram(session, random.Random(0)).play(400)
