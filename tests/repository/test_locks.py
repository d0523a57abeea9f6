"""The locks hold what pyproject.toml asks for, each library with hashes, and setup installs nothing but that."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import pytest
from checkout import CHECKOUT
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

pytestmark = pytest.mark.thorough

PROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))
NAMES = ("requirements", "requirements-build", "requirements-cuda", "requirements-docs")
PLATFORMS = [re.findall(r"(\w+) == '(\w+)'", each) for each in PROJECT["tool"]["uv"]["environments"]]
PLACES = [{"python_full_version": f"{python}.0", **dict(each)} for each in PLATFORMS for python in ("3.11", "3.12", "3.13")]


@dataclass(frozen=True)
class Locked:
    """A line of a lock."""

    name: str
    version: str
    marker: str
    hashes: tuple[str, ...]

    @property
    def is_for_all(self) -> bool:
        return not self.marker or all(Marker(self.marker).evaluate(place) for place in PLACES)


def locked(name: str) -> dict[str, Locked]:
    text = (CHECKOUT / f"{name}.lock").read_text(encoding="utf-8")
    lines = re.findall(r"(?m)^([\w.-]+)==(\S+)(?: ; ([^\\\n]+?))?((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$", text)
    assert len(lines) == text.count("\n") - text.count("--hash=") - 1, f"{name} has a line of another kind"
    return {each[0]: Locked(*each[:3], tuple(re.findall(r"sha256:(\w+)", each[3]))) for each in lines}


def wanted() -> list[Requirement]:
    extras = PROJECT["project"]["optional-dependencies"].values()
    lines = [
        *PROJECT["project"]["dependencies"],
        *PROJECT["build-system"]["requires"],
        *(each for extra in extras for each in extra),
    ]
    return [Requirement(each) for each in lines if not each.startswith("hybridge[")]


@pytest.mark.parametrize("requirement", wanted(), ids=str)
def test_what_pyproject_asks_for_is_locked_in_a_version_that_fits(requirement: Requirement) -> None:
    found = locked("requirements")[canonicalize_name(requirement.name)]
    assert requirement.specifier.contains(found.version), f"scripts/lock: {requirement} is locked as {found.version}"
    assert found.is_for_all, f"{found.name} is locked for {found.marker} alone"


@pytest.mark.parametrize("name", NAMES)
def test_every_library_has_hashes_and_one_line(name: str) -> None:
    text = (CHECKOUT / f"{name}.lock").read_text(encoding="utf-8")
    heads = re.findall(r"(?m)^([^\s#]+)==", text)
    assert len(heads) == len(set(heads)) == len(locked(name)) > 5
    assert [each.name for each in locked(name).values() if not each.hashes] == []


@pytest.mark.parametrize("line", PROJECT["dependency-groups"]["docs"])
def test_what_makes_the_site_is_locked_in_a_version_that_fits(line: str) -> None:
    requirement = Requirement(line)
    found = locked("requirements-docs")[canonicalize_name(requirement.name)]
    assert requirement.specifier.contains(found.version)
    assert found.is_for_all


def test_the_parts_agree() -> None:
    everything = locked("requirements")
    for name, each in {**locked("requirements-docs"), **locked("requirements-build")}.items():
        same = everything.get(name, each)
        assert (same.version, same.hashes) == (each.version, each.hashes)
    assert locked("requirements-build").keys() <= everything.keys()
    assert not everything.keys() & locked("requirements-cuda").keys()


def test_what_the_libraries_need_is_locked() -> None:
    """By what they say of themselves where they are installed: --no-deps installs nothing else."""
    cuda = locked("requirements-cuda").keys()
    for each in locked("requirements").values():
        try:
            needs = metadata.requires(each.name) or []
        except metadata.PackageNotFoundError:
            continue
        for need in map(Requirement, needs):
            if need.marker is None or need.marker.evaluate({"extra": ""}):
                name = canonicalize_name(need.name)
                assert name in locked("requirements") or name in cuda, f"{each.name} needs {need}: run scripts/lock"


def test_pytorch_without_cuda_is_the_version_that_is_locked() -> None:
    (torch,) = locked("requirements-cpu").values()
    assert torch.version == f"{locked('requirements')['torch'].version}+cpu"
    assert torch.hashes


@pytest.mark.slow
def test_another_file_than_the_locked_one_is_not_installed(tmp_path: Path) -> None:
    """What setup asks of pip, over a library whose file has changed."""
    source = tmp_path / "some_library-1.0"
    source.mkdir()
    (source / "pyproject.toml").write_text('[build-system]\nrequires = []\nbuild-backend = "none"\n')
    lock = tmp_path / "some.lock"
    subprocess.run(["tar", "-czf", tmp_path / "some_library-1.0.tar.gz", "-C", tmp_path, source.name], check=True)
    lock.write_text("some-library==1.0 \\\n    --hash=sha256:" + "0" * 64 + "\n")
    words = ["--no-index", "--find-links", str(tmp_path), "--target", str(tmp_path / "none")]
    setup = (CHECKOUT / "scripts" / "setup").read_text(encoding="utf-8")
    (asked,) = re.findall(r"locked\(\) \{ pip (.*) --requirement", setup)
    pip = [sys.executable, "-m", "pip", "install", *asked.split(), *words, "--requirement", str(lock)]
    done = subprocess.run(pip, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stderr
