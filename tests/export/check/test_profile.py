"""Profiles of a small artifact: every instruction is in one part, and the copy of the program computes what it did."""

import importlib
from pathlib import Path

import numpy as np
import pytest

from hybridge.errors import UsageError
from hybridge.export.operators.define import LIBRARY
from hybridge.export.profile.parts import POSITIONS, RECURRENT, Cut, Profiler, profile
from hybridge.export.profile.program import ProgramFile
from hybridge.runtime import Session
from hybridge.runtime.artifact.folder import open_artifact


def test_every_instruction_is_in_one_part(artifact: Path) -> None:
    plan = ProgramFile(artifact / "model.pte").plans["hybridge_decode"]
    cut = Cut("decode", plan, vocab_size=131)
    calls = [len(each.chains[0].instructions) for each in cut.plans]
    whole, positions, *others = calls
    assert sum(calls - positions for calls in others) + positions == whole
    assert {"embedding", "attention", POSITIONS} <= set(cut.names)


def test_the_operators_of_every_recurrence_are_told_from_others() -> None:
    """What has a commit is a recurrence: its time must not be counted as another operator's."""
    importlib.import_module("hybridge.export.kernel_sets.hybridge")  # registers the operators
    committed = {name.removesuffix("_commit") for name in LIBRARY._op_defs if name.endswith("_commit")}
    assert len(committed) >= 4
    assert {name for name in committed if not any(word in name for word in RECURRENT)} == set()


@pytest.mark.slow
def test_profile(artifact: Path) -> None:
    decode, verify, prefill = profile(open_artifact(artifact), ["decode", "verify", "prefill"], context=20, rounds=2)
    assert (decode.method, verify.method, decode.context) == ("decode", "verify", 20)
    assert decode.milliseconds > 0
    assert decode.bandwidth > 0
    assert all(part.calls > 0 and part.milliseconds >= 0 for part in decode.parts)
    # Weights are read once whatever the number of tokens, activations are not.
    assert decode.bytes < verify.bytes < prefill.bytes < 17 * decode.bytes
    assert decode.to_dict()["parts"][0]["operators"]


@pytest.mark.slow
def test_the_copied_program_computes_what_the_artifact_does(artifact: Path, tmp_path: Path) -> None:
    tokens = [5, 6, 7, 8, 9]
    copied = Profiler(open_artifact(artifact), ["decode"], tmp_path).session
    assert np.array_equal(copied.prefill(tokens), Session.load(artifact).prefill(tokens))


def test_a_context_without_room_is_refused(artifact: Path) -> None:
    with pytest.raises(UsageError, match="not 1 to 79"):
        profile(open_artifact(artifact), ["decode"], context=80, rounds=1)
