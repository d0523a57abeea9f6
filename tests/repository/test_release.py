"""A release: a changelog that begins with its version, and the files for a public forge."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import release
import yaml
from checkout import CHECKOUT
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import hybridge

WORKFLOW = CHECKOUT / ".github/workflows/ci.yml"
TEMPLATES = sorted((CHECKOUT / ".github/ISSUE_TEMPLATE").glob("*.yml"))


def test_the_changelog_begins_with_this_version() -> None:
    versions = re.findall(r"(?m)^## (\S+)", (CHECKOUT / "CHANGELOG.md").read_text(encoding="utf-8"))
    assert versions[0] == hybridge.__version__
    assert len(versions) == len(set(versions))


def test_all_parts_have_this_version() -> None:
    """The others read it in hybridge.h."""
    package = json.loads((CHECKOUT / "bindings/node/package.json").read_text(encoding="utf-8"))
    described = (CHECKOUT / "runtime/native/cmake/hybridge.pc").read_text(encoding="utf-8")
    assert [package["version"], *re.findall(r"(?m)^Version: (.+)", described)] == [hybridge.__version__] * 2


def test_the_list_of_components_names_all_libraries_with_versions() -> None:
    found = {str(each["name"]).lower().replace("_", "-"): each for each in release.components()}
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = {canonicalize_name(Requirement(each).name) for each in project["dependencies"]}
    native = {path.name for path in (CHECKOUT / "runtime/native/third_party").iterdir() if path.is_dir()}
    assert asked | native | {"executorch", "xnnpack", "cpuinfo", "marked", "dompurify"} <= found.keys()
    assert all(each["version"] and each["licenses"] for each in found.values())


def test_a_release_replaces_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert release.main(["-o", str(tmp_path), "--without", *release.PARTS]) == 1
    assert "name a new folder" in capsys.readouterr().err
    assert release.main(["-o", str(tmp_path / "new"), "--without", *release.PARTS]) == 0
    sums = next((tmp_path / "new").glob("SHA256SUMS*")).read_text(encoding="ascii").splitlines()
    assert len(sums) == len(list((tmp_path / "new").iterdir())) - 1 == 3


def jobs() -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))["jobs"]
    return read


def test_wheels_are_built_for_each_platform_that_is_locked() -> None:
    built = {each["platform"] for each in jobs()["wheels"]["strategy"]["matrix"]["include"]}
    resolved = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["uv"]["environments"]
    assert built == {"-".join(re.findall(r"(?:sys_platform|platform_machine) == '(\w+)'", each)) for each in resolved}


def test_the_workflow_runs_scripts_that_there_are() -> None:
    run = "\n".join(step.get("run", "") for job in jobs().values() for step in job["steps"])
    scripts = set(re.findall(r"(?<![\w/])(?:scripts/[\w-]+|\.ci/run)", run))
    assert scripts == {".ci/run", "scripts/test", "scripts/setup", "scripts/trust", "scripts/docs", "scripts/release"}
    assert all((CHECKOUT / each).is_file() for each in scripts)
    assert set(jobs()["release"]["needs"]) == jobs().keys() - {"release", "aar", "xcframework"}  # these have never run


def test_the_workflow_runs_the_commands_of_the_page() -> None:
    """Of docs/releasing.md: what only the workflow can run, and the parts of a release that a machine has no tools for."""
    run = "\n".join(step.get("run", "") for job in jobs().values() for step in job["steps"])
    commands = re.findall(r"(?s)```text\n(.+?)```", (CHECKOUT / "docs/releasing.md").read_text(encoding="utf-8"))
    lines = [
        line.strip("()").replace("$(hybridge", "$(../../.venv/bin/hybridge") for each in commands for line in each.splitlines()
    ]
    assert len(lines) > 5
    assert not [line for line in lines if not line.startswith("cd examples/swift") and line not in run]
    for each in jobs()["wheels"]["strategy"]["matrix"]["include"]:
        assert set(each["without"].split()) <= {"--without", *release.PARTS}


def test_actions_are_pinned_to_commits() -> None:
    """A tag can be moved."""
    used = re.findall(r"uses: (.+)", WORKFLOW.read_text(encoding="utf-8"))
    assert len(used) > 10
    assert not [each for each in used if not re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+", each)]


def test_jobs_may_read_alone_but_the_release() -> None:
    assert yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))["permissions"] == {"contents": "read"}
    assert [name for name, job in jobs().items() if "permissions" in job] == ["release"]


@pytest.mark.parametrize("path", [each for each in TEMPLATES if each.name != "config.yml"], ids=lambda path: path.stem)
def test_a_template_asks_for_what_contributing_asks(path: Path) -> None:
    template = yaml.safe_load(path.read_text(encoding="utf-8"))
    fields = [each for each in template["body"] if each["type"] != "markdown"]
    assert template["name"]
    assert template["description"]
    assert len({each["id"] for each in fields}) == len(fields) >= 2
    assert all(each["attributes"]["label"] for each in fields)
