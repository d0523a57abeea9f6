"""Sessions over onnxruntime, compared with a model in PyTorch that has no cache."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
from command_line import exit_code
from numpy.typing import NDArray
from refusals import REFUSED, Inputs, number, padded, refuses
from states import Arrays, same
from torch import Tensor

from hybridge.__main__ import main
from hybridge.errors import ArtifactError, CommitError
from hybridge.export.check.oracle import uncached
from hybridge.export.check.random_program import Oracle, RandomProgram
from hybridge.export.check.validate import validate
from hybridge.export.source.checkpoint import load_checkpoint
from hybridge.runtime import PromptLookup, Session, open_artifact
from hybridge.runtime.binding.drafters import DraftModel
from hybridge.runtime.binding.model import Model
from hybridge.runtime.binding.programs import Program
from hybridge.runtime.onnx.graph import OnnxGraph

PROMPT = [5, 6, 7, 8, 9, 5, 6, 7, 8, 9, 5, 6]


@pytest.fixture(scope="module")
def session(onnx_artifact: Path) -> Session:
    return Session.load(onnx_artifact)


@pytest.fixture(autouse=True)
def _empty(session: Session) -> None:
    session.reset()


@pytest.fixture(scope="module")
def oracle(lively_checkpoint: Path) -> Oracle:
    """The checkpoint's own logits, without a cache."""
    return uncached(load_checkpoint(lively_checkpoint).model)


def program(session: Session) -> Program:
    """The graphs, without the checks of a session."""
    assert session.model.program is not None
    return session.model.program


def close(got: NDArray[np.float32], want: Tensor) -> None:
    assert np.abs(got - want.numpy()).max() <= 1e-5 * want.abs().max()


def bits(session: Session) -> Arrays:
    """The committed state: rows that the length does not reach hold anything."""
    state = {name: each for name, each in session.state().items() if name != "operations"}
    rows = {name: each[:, :, : session.length] for name, each in state.items() if name in ("layers.1.key", "layers.1.value")}
    return state | rows


# What it computes


@pytest.mark.slow
def test_random_programs_and_generation_agree_with_the_uncached_model(session: Session, oracle: Oracle) -> None:
    report = validate(session, oracle, programs=15, prompts=3, new_tokens=40, seed=1, notify=lambda done, total: None)
    assert report.passed, report
    assert report.generation.rollbacks > 0
    assert set(report.operations) == {"prefill", "decode", "verify", "commit", "snapshot", "restore", "reset"}


def test_a_rejection_changes_no_bit(session: Session) -> None:
    session.prefill(PROMPT)
    before = bits(session)
    session.verify([1, 2, 3])
    session.commit(0)
    assert same(before, bits(session))
    session.verify([1, 2, 3])
    session.commit(1)
    assert not np.array_equal(before["layers.0.conv_state"], bits(session)["layers.0.conv_state"]), "the check notices a commit"


def test_a_verify_runs_only_the_tokens_that_fit(session: Session, oracle: Oracle) -> None:
    """A harness may pad a block beyond the last position."""
    text = list(range(94))
    session.prefill(text)
    (logits,) = program(session).call("verify", padded([3, 4], 5))
    close(logits[0, :2], oracle([*text, 3, 4])[-2:])
    assert np.isnan(logits[0, 2:]).all()
    assert program(session).call("commit", number(3))[0].tolist() == [-1]
    assert program(session).call("commit", number(2))[0].tolist() == [96]


# Snapshots


def test_a_snapshot_copies_nothing_and_versions_are_few(session: Session) -> None:
    state = program(session)._state  # type: ignore[attr-defined]
    session.prefill(PROMPT)
    session.snapshot(0)
    assert state.slots[0] is state.now
    RandomProgram(session, random.Random(3)).play(300)
    assert len(state._versions) <= session.snapshot_slots + 2


@pytest.mark.parametrize(("name", "inputs"), REFUSED)
def test_the_program_itself_refuses(session: Session, name: str, inputs: Inputs) -> None:
    session.prefill(PROMPT)
    before = bits(session)
    assert refuses(session.model.program, name, inputs)
    assert same(before, bits(session))


def test_a_full_context_is_refused(session: Session) -> None:
    session.prefill([1] * session.max_seq_len)
    before = bits(session)
    for name in ("decode", "verify"):
        assert np.isnan(program(session).call(name, np.array([[1]]))[0]).all()
    assert program(session).call("commit", number(0))[0].tolist() == [-1]
    assert same(before, bits(session))


def test_a_token_outside_the_vocabulary_fails_and_changes_nothing(session: Session) -> None:
    session.prefill(PROMPT)
    before = bits(session)
    with pytest.raises(ArtifactError, match="indices element out of data bounds"):
        program(session).call("decode", np.array([[131]]))
    assert same(before, bits(session))


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_interrupt_leaves_a_usable_session(
    session: Session, when: str, monkeypatch: pytest.MonkeyPatch, oracle: Oracle
) -> None:
    def run(graph: OnnxGraph, binding: object) -> None:
        if when == "after":
            really(graph, binding)
        raise KeyboardInterrupt

    really = OnnxGraph.run
    session.prefill(PROMPT)
    session.verify([1, 2])
    for call in (lambda: session.commit(1), lambda: session.decode(3), lambda: session.prefill([3, 4])):
        with monkeypatch.context() as patched:
            patched.setattr(OnnxGraph, "run", run)
            with pytest.raises(KeyboardInterrupt):
                call()
        assert session.tokens == PROMPT
    close(session.decode(4), oracle([*PROMPT, 4])[-1])


def test_forward_serves_a_stock_loop(session: Session, oracle: Oracle) -> None:
    session.prefill([9, 9])
    for i, token in enumerate(PROMPT):
        (logits,) = program(session).call("forward", np.array([[token]]), number(i))
    close(logits[0, 0], oracle(PROMPT)[-1])


# On disk


def test_a_saved_state_goes_on_bit_for_bit(session: Session, onnx_artifact: Path, tmp_path: Path, oracle: Oracle) -> None:
    session.prefill(PROMPT[:4])
    session.snapshot(1)
    session.prefill(PROMPT[4:])
    session.snapshot(0)
    session.verify([1, 2])
    session.save(tmp_path / "state")
    other = Session.load(onnx_artifact)
    other.prefill([1, 2, 3])
    other.snapshot(0)
    other.verify([4, 4])
    assert other.load_state(tmp_path / "state") == len(PROMPT)
    with pytest.raises(CommitError):
        other.commit(1)
    assert same(bits(session), bits(other))
    for going in (lambda each: each.decode(3), lambda each: each.restore(0), lambda each: each.decode(4)):
        assert np.array_equal(going(session), going(other))
    for each in (session, other):
        assert each.restore(1) == 4
        close(each.decode(8), oracle([*PROMPT[:4], 8])[-1])


# What guesses


# The command line


def test_the_commands_take_either_artifact(
    onnx_artifact: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(monkeypatch, main, "hybridge", "run", onnx_artifact, "--prompt", "abcabcabc", "--max-new-tokens", 12) == 0
    assert capsys.readouterr().out.startswith("abcabcabc")
    assert exit_code(monkeypatch, main, "hybridge", "inspect", onnx_artifact, "--all") == 0
    shown = capsys.readouterr().out
    assert "com.microsoft::LinearAttention" in shown
    assert "not bit-identical" in shown
    assert exit_code(monkeypatch, main, "hybridge", "bench", onnx_artifact, "--profile") == 2
    assert "onnxruntime's own profiler" in " ".join(capsys.readouterr().err.split())


# What an export writes


def test_hybridge_validate_passes(
    onnx_artifact: Path, lively_checkpoint: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("validate", onnx_artifact, "--against", lively_checkpoint, "--programs", 8, "--json")
    assert exit_code(monkeypatch, main, "hybridge", *words) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["passed"]
    assert report["worst_relative"] <= 2e-5


def test_greedy_tokens_are_the_same_with_a_drafter(session: Session, artifact: Path) -> None:
    drafters = [PromptLookup(), DraftModel(Model.open(open_artifact(artifact)), session)]
    for seed in range(9):
        rng = random.Random(seed)
        prompt = [rng.randrange(session.vocab_size) for _ in range(rng.randint(1, 30))]
        session.reset()
        want = list(session.generate(prompt, max_new_tokens=60))
        session.reset()
        assert list(session.generate(prompt, max_new_tokens=60, drafter=drafters[seed % 2])) == want
