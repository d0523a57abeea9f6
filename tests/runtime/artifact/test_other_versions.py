"""Artifacts of another ExecuTorch, or for operators and backends that this one lacks: they run, or the error says why.

The artifact has two random layers of qwen3_5_text by ``--kernels hybridge``. ExecuTorch 1.4.1 exported it; its methods were
renamed, its operators and format versions rewritten for later readers.
"""

from __future__ import annotations

import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkout import CHECKOUT, OLDER_ARTIFACT
from command_line import exit_code
from forgery import Content, forge
from tiny import save_tokenizer
from typer.testing import CliRunner

from hybridge.__main__ import main, tree
from hybridge.errors import ArtifactError
from hybridge.export.profile import program as executorch_program
from hybridge.export.profile.program import ProgramFile
from hybridge.runtime import Session, pinned
from hybridge.runtime.artifact.folder import file_entry, open_artifact
from hybridge.runtime.artifact.program_check import installed

PROMPT = [5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41]
GREEDY = [
    *(24, 104, 35, 65, 104, 76, 97, 112, 7, 11, 0, 127, 22, 15, 12),
    *(48, 67, 127, 22, 15, 12, 65, 17, 96, 35, 91, 114, 42, 127, 113),
]
"""What the version that exported it generated."""
BETWEEN = "It was made with executorch 1.4.1, and 1.5.1 is installed here."


@pytest.fixture
def older_artifact(tmp_path: Path) -> Path:
    return Path(shutil.copytree(OLDER_ARTIFACT, tmp_path / "artifact"))


def refused(folder: Path, change: Callable[[Content], object]) -> str:
    forge(folder, change)
    with pytest.raises(ArtifactError) as caught:
        Session.load(folder)
    return str(caught.value)


def called(*names: str) -> Callable[[Content], object]:
    return lambda content: content["methods"]["verify"]["operators"].extend(names)


def test_it_runs_and_inspect_names_both_versions() -> None:
    shown = " ".join(CliRunner().invoke(tree(), ["inspect", str(OLDER_ARTIFACT)]).stdout.split())
    assert f"{BETWEEN} Loading it checks that this one has all of its operators and backends." in shown
    assert np.isfinite(Session.load(OLDER_ARTIFACT).prefill([5, 7])).all()


def test_a_session_gives_the_same_tokens() -> None:
    session = Session.load(OLDER_ARTIFACT)
    assert list(session.generate(PROMPT, max_new_tokens=len(GREEDY))) == GREEDY
    session.reset()
    session.prefill(PROMPT)
    session.snapshot(0)
    session.verify([*GREEDY[:2], 1])
    session.commit(2)
    assert [int(session.decode(token).argmax()) for token in GREEDY[2:6]] == GREEDY[3:7]
    session.restore(0)
    assert int(session.decode(GREEDY[0]).argmax()) == GREEDY[1]


def test_the_same_version_is_not_talked_about(older_artifact: Path) -> None:
    forge(older_artifact, lambda content: content["versions"].update(executorch=installed("executorch")))
    assert "installed here" not in CliRunner().invoke(tree(), ["inspect", str(older_artifact)]).stdout


def test_a_missing_operator_is_named_with_what_to_do(older_artifact: Path) -> None:
    assert refused(older_artifact, called("llama::better_delta_rule.out")) == (
        f"this ExecuTorch has no operator llama::better_delta_rule.out, which the program calls. {BETWEEN} "
        "Export the model again, with --kernels aten if the operator is still missing then."
    )


def test_an_operator_of_a_later_hybridge_is_named_with_its_version(older_artifact: Path) -> None:
    said = refused(older_artifact, called("hybridge::later.out", "llama::x.out"))
    assert said.startswith("this hybridge has no operator hybridge::later.out, which the program calls.")
    assert f"use hybridge {open_artifact(older_artifact).manifest.versions['hybridge']} that made it" in said


def test_of_many_missing_operators_some_are_named(older_artifact: Path) -> None:
    said = refused(older_artifact, called(*(f"aten::{letter}.out" for letter in "abcdefghijk")))
    assert "aten::g.out, aten::h.out and 3 more, which" in said


def test_a_missing_backend_is_named_with_what_to_do(older_artifact: Path) -> None:
    said = refused(older_artifact, lambda content: content["methods"]["decode"]["delegates"].update(NewBackend=2))
    assert said == (
        f"this ExecuTorch has no backend NewBackend, to which the program hands parts. {BETWEEN} "
        "Export the model again, with --backend portable if the backend is still missing then."
    )


def test_the_command_ends_with_1_and_the_message(
    older_artifact: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save_tokenizer(older_artifact)
    entry = file_entry(older_artifact / "tokenizer.json").model_dump()
    forge(older_artifact, lambda content: content["files"].update({"tokenizer.json": entry}))
    forge(older_artifact, called("llama::better_delta_rule.out"))
    assert exit_code(monkeypatch, main, "hybridge", "run", older_artifact, "--prompt", "x") == 1
    assert "has no operator llama::better_delta_rule.out" in " ".join(capsys.readouterr().err.split())


@pytest.fixture
def for_another_runtime(older_artifact: Path) -> Path:
    """The program itself calls an operator that nobody has, and the manifest says so."""
    file = ProgramFile(OLDER_ARTIFACT / "model.pte")
    calls = [each for plan in file.plans.values() for each in plan.operators if each.name == "hybridge::write_rows"]
    for each in calls:
        each.name = "hybridge::better_rows"
    assert calls
    file.write(older_artifact / "model.pte", [])
    forge(older_artifact, called("hybridge::better_rows.out"))
    return older_artifact


def test_an_operator_that_nobody_has_is_named(for_another_runtime: Path) -> None:
    says = r"this hybridge has no operator hybridge::better_rows.out, which the program calls"
    with pytest.raises(ArtifactError, match=says):
        Session.load(for_another_runtime)


def test_an_operator_that_the_manifest_hides_is_named(for_another_runtime: Path) -> None:
    said = refused(for_another_runtime, lambda content: content["methods"]["verify"]["operators"].pop())
    assert "calls 'hybridge::better_rows.out', which its manifest does not list" in said


def test_a_program_that_does_not_load_says_that_it_is_of_another_version(older_artifact: Path) -> None:
    data = bytearray((older_artifact / "model.pte").read_bytes())
    assert data[4:6] == b"ET"
    data[4:8] = b"ET99"  # of a later format
    (older_artifact / "model.pte").write_bytes(data)
    said = refused(older_artifact, lambda content: None)
    assert "model.pte does not load: " in said
    assert said.endswith(BETWEEN)


def test_another_executorch_in_the_environment_is_named_by_what_needs_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions have libraries of their own; a profile's parts run in the package."""

    def extension() -> Any:
        raise ImportError("cannot import name '_C' from 'executorch.extension.pybindings'")

    monkeypatch.setattr(executorch_program, "extension", extension)
    monkeypatch.setattr(executorch_program, "installed", lambda library: "1.4.1")
    with pytest.raises(ArtifactError, match=r"^a profile needs ExecuTorch 1.5.1, and 1.4.1 is installed here .*pip install"):
        executorch_program.ExecuTorchProgram(open_artifact(OLDER_ARTIFACT))


def test_the_version_is_the_one_that_is_pinned() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert f"executorch=={pinned.EXECUTORCH}" in project["optional-dependencies"]["export"]
    assert installed("executorch") == pinned.EXECUTORCH
    assert installed("no-such-library") == "none"
