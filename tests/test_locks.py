"""The locks hold what pyproject.toml asks for, each library with hashes, and setup installs nothing but that."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))
import lock as lock_script
from lock import PLATFORMS, Locked, read

pytestmark = pytest.mark.thorough  # of a campaign script

CHECKOUT = Path(__file__).parents[1]
PROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))
NAMES = ("requirements", "requirements-build", "requirements-cuda", "requirements-docs")


def locked(name: str) -> dict[str, Locked]:
    return {each.name: each for each in read((CHECKOUT / f"{name}.lock").read_text(encoding="utf-8"))}


def wanted() -> list[Requirement]:
    extras = PROJECT["project"]["optional-dependencies"].values()
    lines = [
        *PROJECT["project"]["dependencies"],
        *PROJECT["build-system"]["requires"],
        *(each for extra in extras for each in extra),
    ]
    return [Requirement(each) for each in lines if not each.startswith(lock_script.OWN)]


@pytest.mark.parametrize("requirement", wanted(), ids=str)
def test_what_pyproject_asks_for_is_locked_in_a_version_that_fits(requirement: Requirement) -> None:
    found = locked("requirements")[canonicalize_name(requirement.name)]
    assert requirement.specifier.contains(found.version), f"scripts/lock: {requirement} is locked as {found.version}"
    assert found.where == set(PLATFORMS), f"{found.name} is not locked for {set(PLATFORMS) - found.where}"


@pytest.mark.parametrize("name", NAMES)
def test_every_library_has_hashes_and_one_line(name: str) -> None:
    text = (CHECKOUT / f"{name}.lock").read_text(encoding="utf-8")
    heads = re.findall(r"(?m)^([^\s#]+)==", text)
    assert len(heads) == len(set(heads)) == len(locked(name)) > 5
    assert [each.name for each in locked(name).values() if not each.hashes] == []
    assert "".join(map(str, locked(name).values())) == text.partition("\n")[2], "scripts/lock writes it in another way"


@pytest.mark.parametrize("line", PROJECT["dependency-groups"]["docs"])
def test_what_makes_the_site_is_locked_in_a_version_that_fits(line: str) -> None:
    requirement = Requirement(line)
    found = locked("requirements-docs")[canonicalize_name(requirement.name)]
    assert requirement.specifier.contains(found.version)
    assert found.where == set(PLATFORMS)


def test_the_parts_agree() -> None:
    everything = locked("requirements")
    assert all(everything.get(name, each) == each for name, each in locked("requirements-docs").items())
    assert all(everything[name] == each for name, each in locked("requirements-build").items())
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


@pytest.mark.parametrize(
    ("marker", "platforms"),
    [
        ("sys_platform == 'linux' and platform_machine == 'x86_64'", {("linux", "x86_64")}),
        ("platform_system == 'Linux'", {("linux", "x86_64"), ("linux", "aarch64")}),
        ("python_full_version < '3.14' and platform_machine != 'aarch64'", {("linux", "x86_64"), ("darwin", "arm64")}),
        ("os_name == 'posix'", set(PLATFORMS)),
    ],
)
def test_markers_become_the_shortest_that_say_the_same(marker: str, platforms: set[tuple[str, str]]) -> None:
    digest = "0" * 64
    (found,) = read(f"some-library==1.0 ; {marker} \\\n    --hash=sha256:{digest}\n    # via another\n")
    assert found == Locked("some-library", "1.0", frozenset(platforms), (digest,))
    assert list(read(str(found))) == [found]


def test_a_library_that_one_python_alone_needs_is_no_line() -> None:
    with pytest.raises(AssertionError, match="not needed by each Python"):
        list(read("tomli==2.0 ; python_full_version < '3.12' \\\n    --hash=sha256:" + "0" * 64))


def test_pytorch_without_cuda_is_locked_by_its_wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And stays locked where they are not at hand, until there is a newer PyTorch."""
    monkeypatch.setattr(lock_script, "ROOT", tmp_path)
    (tmp_path / "torch-2.13.0+cpu-cp311-cp311-linux_x86_64.whl").write_bytes(b"")
    (tmp_path / "torch-2.12.0+cpu-cp311-cp311-linux_x86_64.whl").write_bytes(b"older")
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    torch = Locked("torch", "2.13.0", frozenset(PLATFORMS), ("0" * 64,))
    found = lock_script.without_cuda([torch], [tmp_path])
    assert found == [Locked("torch", "2.13.0+cpu", frozenset(PLATFORMS), (empty,))]
    lock_script.write("requirements-cpu", "PyTorch", found)
    assert lock_script.without_cuda([torch], []) == found
    assert lock_script.without_cuda([Locked("torch", "2.14.0", torch.where, torch.hashes)], [tmp_path]) == []


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
