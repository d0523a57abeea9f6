"""A release: a changelog that begins with its version, and the files for a public forge."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from checkout import CHECKOUT

import hybridge

WORKFLOW = CHECKOUT / ".github/workflows/ci.yml"
TEMPLATES = sorted((CHECKOUT / ".github/ISSUE_TEMPLATE").glob("*.yml"))


def test_the_changelog_begins_with_this_version() -> None:
    versions = re.findall(r"(?m)^## (\S+)", (CHECKOUT / "CHANGELOG.md").read_text(encoding="utf-8"))
    assert versions[0] == hybridge.__version__
    assert len(versions) == len(set(versions))


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
    assert scripts == {".ci/run", "scripts/test", "scripts/setup", "scripts/trust", "scripts/docs"}
    assert all((CHECKOUT / each).is_file() for each in scripts)
    assert set(jobs()["release"]["needs"]) == jobs().keys() - {"release"}


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
