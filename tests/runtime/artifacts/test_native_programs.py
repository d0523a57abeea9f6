"""Programs that the native core must not run: damaged, written to while they are open, or not what it takes them for."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from ctypes import byref
from pathlib import Path
from typing import Any

import pytest
from executorch.exir._serialize._program import deserialize_pte_binary, serialize_pte_binary
from executorch.exir.schema import EValue, Int
from forgery import forge

from hybridge.cache.errors import ArtifactError
from hybridge.runtime import Session
from hybridge.runtime.core.interface import Handle, Status
from hybridge.runtime.core.library import load

PROMPT = [5, 6, 7, 8, 9, 5, 6, 7, 8, 9, 5, 6]


@pytest.mark.slow
def test_a_program_that_is_written_to_is_noticed(artifact: Path, tmp_path: Path) -> None:
    """Cut off under an open session it once was SIGBUS, rewritten in place it silently gave other logits."""
    for change in (lambda path: os.truncate(path, 100), lambda path: path.write_bytes(path.read_bytes()[::-1])):
        folder = shutil.copytree(artifact, tmp_path / "artifact", dirs_exist_ok=True)
        session = Session.load(folder)
        session.prefill(PROMPT)
        change(folder / "model.pte")
        with pytest.raises(ArtifactError, match=r"model\.pte (has 100 bytes|was altered)"):
            session.decode(1)


@pytest.mark.slow
def test_a_program_that_does_not_load_is_said(artifact: Path, tmp_path: Path) -> None:
    shutil.copytree(artifact, tmp_path / "artifact")
    (tmp_path / "artifact" / "model.pte").write_bytes(b"not a program" * 100)
    forge(tmp_path / "artifact")
    with pytest.raises(ArtifactError, match=r"plan cannot be read"):
        Session.load(tmp_path / "artifact")


def number_for_logits(plan: Any) -> None:
    plan.values.append(EValue(Int(7)))
    plan.outputs[0] = len(plan.values) - 1


FORGED: dict[str, tuple[str, Callable[[Any], None], str]] = {
    "a number in place of logits": ("decode", number_for_logits, "is no tensor"),
    "a number in place of a length": ("reset", number_for_logits, "is no tensor"),
    "nothing in place of logits": ("decode", lambda plan: plan.outputs.clear(), r"decode gives \[\]"),
}


@pytest.mark.slow
@pytest.mark.parametrize("forgery", FORGED)
def test_a_program_that_answers_with_no_tensors_is_refused(artifact: Path, forgery: str, tmp_path: Path) -> None:
    """The runtime ends a process that takes a number for a tensor."""
    method, change, says = FORGED[forgery]
    shutil.copytree(artifact, tmp_path / "artifact")
    file = deserialize_pte_binary((artifact / "model.pte").read_bytes())
    change(next(plan for plan in file.program.execution_plan if plan.name == f"hybridge_{method}"))
    forged = serialize_pte_binary(file, extract_delegate_segments=True, segment_alignment=4096)
    (tmp_path / "artifact" / "model.pte").write_bytes(bytes(forged))
    forge(tmp_path / "artifact")
    with pytest.raises(ArtifactError, match=says):
        Session.load(tmp_path / "artifact")
    # The core refuses it too: apps have no other check.
    model, session = Handle(), Handle()
    assert load().hybridge_model_open(str(tmp_path / "artifact/model.pte").encode(), byref(model)) == Status.OK
    assert load().hybridge_session_open(model, byref(session)) == Status.INVALID_FILE
