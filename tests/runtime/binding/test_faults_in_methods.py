"""Faults inside methods: the old state is back, or the session says that it is broken until a whole state comes."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from babbling import babble, talk, tokens_of
from failing_methods import FailingStep, Trial, try_methods
from store import demo_folder
from store import exported as stored
from table import VOCABULARY, Table
from tiny import save_lively_checkpoint, tiny_config

from hybridge.errors import ArtifactError, BrokenStateError
from hybridge.runtime import ExportOptions, Model, Session, open_artifact
from hybridge.runtime.artifact.model_info import ProgramInfo
from hybridge.runtime.binding.programs import Numbers, TextProgram

needs_preload = pytest.mark.skipif(sys.platform != "linux", reason="preloads a library of ELF")
REFUSED = {"decode", "prefill", "commit", "restore", "reset"}
UNDONE = {"long prefill", "verify", "snapshot"}


def check(outcomes: Counter[str]) -> None:
    """Each method failed, and left what it may leave."""
    for method in REFUSED:
        assert outcomes[f"{method}: refused"] > 0, method
        assert outcomes[f"{method}: old state"] == 0, method
    for method in UNDONE:
        assert outcomes[f"{method}: old state"] > 0, method
        assert outcomes[f"{method}: refused"] == 0, method


@needs_preload
@pytest.mark.parametrize("name", ["kernels_artifact", pytest.param("artifact", marks=pytest.mark.thorough)])
def test_a_kernel_or_memory_that_fails_leaves_the_old_state_or_a_refusal(request: pytest.FixtureRequest, name: str) -> None:
    """The last kernel's memory failed in a decode, and the same decode again was off by 15 % of the largest logit."""
    report = try_methods(request.getfixturevalue(name), every=3)
    assert report.wrong == []
    check(report.outcomes)


FAMILIES = ("lfm2", "falcon_h1", "jamba", "minimax", "recurrent_gemma", "gpt_oss", "kimi_linear")
"""A family of every other recurrence and kind of attention."""


@needs_preload
@pytest.mark.thorough
@pytest.mark.parametrize("name", FAMILIES)
def test_every_recurrence(tmp_path: Path, name: str) -> None:
    save_lively_checkpoint(tmp_path / "checkpoint", tiny_config(name))
    sizes = ExportOptions(max_seq_len=67, prefill_chunk=17, verify_len=5, snapshot_slots=2, kernels="hybridge")
    report = try_methods(stored(tmp_path / "checkpoint", sizes))
    assert report.wrong == []
    check(report.outcomes)


@needs_preload
@pytest.mark.thorough
def test_rows_of_8_bits(checkpoint: Path) -> None:
    sizes = ExportOptions(max_seq_len=96, prefill_chunk=17, verify_len=5, snapshot_slots=2, kernels="hybridge", kv_cache="int8")
    report = try_methods(stored(checkpoint, sizes))
    assert report.wrong == []
    check(report.outcomes)


@needs_preload
@pytest.mark.thorough
@pytest.mark.parametrize("name", ["hybridge-demo", "hybridge-demo-dspark"])
def test_a_drafter(name: str) -> None:
    report = try_methods(demo_folder() / name, every=7)
    assert report.wrong == []
    assert report.outcomes["draft: refused"] > 0


class LineFaults:
    """Failures in the lines of a program in Python, which stand for its kernels."""

    def __init__(self, module: str) -> None:
        self._module, self._number, self._lines = module, 0, 0

    def arm(self, what: FailingStep, number: int) -> None:
        self._number, self._lines = number, 0
        if what is FailingStep.ALLOCATION:
            return
        sys.settrace(lambda frame, *_: self._trace if frame.f_code.co_filename.endswith(self._module) else None)

    def disarm(self) -> bool:
        sys.settrace(None)
        return self._lines >= self._number

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        self._lines += event == "line"
        if event == "line" and self._lines == self._number:
            raise ArtifactError("the program failed")
        return self._trace


def test_a_program_in_python_that_fails_in_any_line(onnx_artifact: Path, tmp_path: Path) -> None:
    model = Model.open(open_artifact(onnx_artifact))
    report = Trial(model, LineFaults("onnx/program.py"), tmp_path, every=7).run()
    assert report.wrong == []
    assert report.outcomes["decode: old state"] > report.outcomes["decode: refused"]


class Halfway(TextProgram):
    """Spoils its state in calls of the names ``fails``, and undoes nothing."""

    is_atomic = False
    fails: tuple[str, ...] = ()

    def call(self, name: str, *inputs: Numbers) -> tuple[Numbers, ...]:
        if name in self.fails:
            self.rows[int(self.numbers[0])] += 1
            raise ArtifactError("the program failed")
        return super().call(name, *inputs)


@pytest.mark.parametrize("name", ["prefill", "decode", "commit", "restore", "reset"])
def test_a_program_that_undoes_nothing_breaks_the_state(name: str) -> None:
    program = Halfway(Table(1, ends=False))
    options = ExportOptions(max_seq_len=60, prefill_chunk=5, verify_len=4)
    session = Session.over(program, ProgramInfo(vocab_size=VOCABULARY, options=options))
    session.prefill([1, 2])
    kept = session.checkpoint()
    session.snapshot(0)
    session.verify([3, 1])
    program.fails = (name,)
    calls = {
        "prefill": lambda: session.prefill([1, 2, 3, 1, 2]),
        "decode": lambda: session.decode(1),
        "commit": lambda: session.commit(1),
        "restore": lambda: session.restore(0),
        "reset": session.reset,
    }
    with pytest.raises(ArtifactError):
        calls[name]()
    program.fails = ()
    for call in (calls["prefill"], calls["decode"], calls["commit"], session.checkpoint, lambda: session.snapshot(0)):
        with pytest.raises(BrokenStateError, match="reset the session"):
            call()
    assert session.resume(kept) == 2
    assert program.text == session.tokens == [1, 2]
    session.decode(1)


def test_a_conversation_goes_on_after_a_state_that_broke() -> None:
    program = Halfway(babble, 600, 2)
    conversation = talk(program=program)
    conversation.say("hello")

    def fail(*_: str) -> bool:
        program.fails = ("decode", "commit")
        return True

    with pytest.raises((ArtifactError, BrokenStateError)):
        conversation.say("again", fail)
    program.fails = ()
    with pytest.raises(BrokenStateError):
        conversation.session.decode(1)
    conversation.say("again")
    text = tokens_of(conversation)
    assert program.text == conversation.session.tokens == text[: len(program.text)]
