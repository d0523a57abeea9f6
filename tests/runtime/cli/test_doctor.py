"""``hybridge doctor``: what it finds, what it says of what is missing, and its exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from typer.testing import CliRunner

from hybridge.__main__ import tree
from hybridge.errors import KernelsError
from hybridge.runtime.cli import doctor
from hybridge.runtime.cli.doctor import Requirements, _of_metadata, requirements
from hybridge.runtime.kernels import compiling, library

PROJECT = """
[project]
dependencies = ["torch>=2", "no-such-library==1.0", "typer<0.1"]
[project.optional-dependencies]
onnx = ["onnxruntime>=1", "no-such-library"]
serve = ["starlette>=1"]
dev = ["pytest"]
"""
WITHOUT_TORCH = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "executorch"):
            raise ImportError(f"libgomp.so.1 is missing for {name}")

sys.meta_path.insert(0, Absent())
from hybridge.__main__ import main
main()
"""


@pytest.fixture
def made_up_requirements(tmp_path: Path) -> Requirements:
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    return requirements(tmp_path)


def test_what_is_missing_or_of_another_version_is_named_with_the_command_that_brings_it(
    made_up_requirements: Requirements,
) -> None:
    report = doctor.examine(made_up_requirements)
    assert [each.name for each in report.missing] == ["no-such-library", "typer"]
    assert report.missing[0].found == "not installed; ==1.0 is needed"
    assert "<0.1 is needed" in report.missing[1].found
    assert report.missing[0].remedy == f"pip install {made_up_requirements.name}"
    assert not report.to_dict()["ok"]


def test_an_extra_that_is_missing_is_no_failure(made_up_requirements: Requirements) -> None:
    extras = {each.name: each for each in doctor.examine(made_up_requirements).parts["extras"]}
    assert list(extras) == ["onnx", "serve"]
    assert not extras["onnx"].ok
    assert not extras["onnx"].needed
    assert extras["onnx"].found == "--format onnx; without no-such-library"
    assert extras["onnx"].remedy == f"pip install '{made_up_requirements.name}[onnx]'"
    assert extras["serve"].ok


def test_a_wheels_description_says_the_same_as_a_checkout() -> None:
    lines = ["torch>=2", 'tomli; python_version < "3.0"', 'onnxruntime>=1; extra == "onnx"', 'pytest; extra == "dev"']
    found = _of_metadata([Requirement(line) for line in lines])
    assert [each.name for each in found.needed] == ["torch"]
    assert {name: [each.name for each in libraries] for name, libraries in found.extras.items()} == {"onnx": ["onnxruntime"]}
    assert found.install("onnx") == "pip install 'hybridge[onnx]'"


def test_this_checkout_has_what_it_needs_and_names_every_extra() -> None:
    done = CliRunner().invoke(tree(), ["doctor", "--json"])
    assert done.exit_code == 0, done.stdout
    content = json.loads(done.stdout)
    assert content["ok"]
    assert {"torch loads", "ExecuTorch loads"} <= {each["name"] for each in content["libraries"]}
    assert {each["name"] for each in content["extras"]} >= {"checkpoints", "export", "onnx", "optimum"}
    assert {each["name"] for each in content["extras"]} == doctor.BRINGS.keys() & {each["name"] for each in content["extras"]}


def test_the_report_shows_all_findings_and_what_to_do(
    made_up_requirements: Requirements, capsys: pytest.CaptureFixture[str]
) -> None:
    report = doctor.examine(made_up_requirements)
    doctor.show(report)
    shown = capsys.readouterr()
    assert [each.name for part in report.parts.values() for each in part if each.name not in shown.out] == []
    assert f"missing no-such-library: pip install {made_up_requirements.name}" in shown.out
    assert f"to have onnx: pip install '{made_up_requirements.name}[onnx]'" in shown.out
    assert "hybridge needs more than is here: no-such-library, typer." in shown.err


def test_without_kernels_and_without_a_compiler_there_is_nothing_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "is_built", lambda: False)
    monkeypatch.setattr(compiling, "compiler", lambda: None)
    kernels = doctor.examine().parts["kernels"]
    assert [(each.name, each.ok) for each in kernels] == [("kernels", False)]
    assert "install g++ or clang++" in kernels[0].remedy
    assert CliRunner().invoke(tree(), ["doctor"]).exit_code == 1


@pytest.mark.parametrize(
    ("banner", "ok"), [("cmake version 3.25.1", False), ("cmake version 4.0", True), ("CMake, mine", True)]
)
def test_a_cmake_that_is_too_old_for_apps_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, banner: str, ok: bool
) -> None:
    program = tmp_path / "cmake"
    program.write_text(f"#!/bin/sh\necho '{banner}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    (cmake,) = (each for each in doctor.examine().parts["tools"] if each.name == "cmake")
    assert (cmake.ok, cmake.found) == (ok, f"{banner}; {program}")


def test_kernels_that_are_not_compiled_yet_are_no_failure_and_are_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "is_built", lambda: False)
    monkeypatch.setattr(library, "build", lambda: pytest.fail("compiles"))
    kernels = doctor.examine().parts["kernels"]
    assert [each.ok for each in kernels] == [compiling.missing_tool() is None]
    assert "hybridge kernels build" in kernels[0].found


def test_kernels_that_may_not_be_run_are_told_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> str:
        raise KernelsError("others may write it; it is not run")

    monkeypatch.setattr(library, "is_built", lambda: True)
    monkeypatch.setattr(library, "load", refuse)
    report = doctor.examine()
    assert [each.remedy for each in report.missing] == ["others may write it; it is not run"]


@pytest.mark.slow
def test_it_works_where_torch_does_not() -> None:
    command = [sys.executable, "-c", WITHOUT_TORCH, "doctor", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | {"HYBRIDGE_ISA": ""})
    assert done.returncode == 1, done.stderr
    broken = {each["name"]: each["remedy"] for each in json.loads(done.stdout)["libraries"] if not each["ok"]}
    assert broken["torch loads"] == "libgomp.so.1 is missing for torch"
    assert "ExecuTorch loads" in broken
