"""Write requirements.lock and its parts: the exact version of each library and the hashes that its files may have.

One resolution serves Python 3.11 to 3.13 on Linux (x86-64, aarch64) and macOS (arm64). Versions that are locked stay as they
are unless they no longer fit pyproject.toml or ``--upgrade`` names them. It needs a network, and takes about a minute.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import subprocess
import sys
import tempfile
import tomllib
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from packaging.markers import Marker

ROOT = Path(__file__).parent.parent
UV = "uv==0.13.9"
"""What resolves, in an environment of its own: nobody else needs it."""
PYTHONS = ("3.11", "3.12", "3.13")
PLATFORMS = {
    ("linux", "x86_64"): "x86_64-manylinux_2_28",
    ("linux", "aarch64"): "aarch64-manylinux_2_28",
    ("darwin", "arm64"): "aarch64-apple-darwin",
}
"""What setup runs on, and uv's name for it."""
EXTRAS = ("checkpoints", "dev", "eval", "export", "onnx", "optimum")
OWN = "hybridge["
"""How an extra asks for another one."""
BUILD = ("editables", "setuptools")
"""What builds the checkout and the libraries that are published as source alone, beside pyproject's build-system."""
LOCKS = ("requirements", "requirements-cuda")
"""The locks that hold every version between them."""
CUDA = ("cuda-", "nvidia-", "triton")
"""Beginnings of the libraries that PyTorch's wheels with CUDA want, and those without do not."""


@dataclass(frozen=True)
class Locked:
    """A line of a lock. where: the platforms that need it."""

    name: str
    version: str
    where: frozenset[tuple[str, str]]
    hashes: tuple[str, ...]

    def __str__(self) -> str:
        """The line, with a marker where it is not for all platforms."""
        allowed = "".join(f" \\\n    --hash=sha256:{each}" for each in sorted(self.hashes))
        return f"{self.name}=={self.version}{marker(self.where)}{allowed}\n"


def marker(where: frozenset[tuple[str, str]]) -> str:
    """Return the shortest marker that says which platforms these are."""
    for words in ("", ' ; sys_platform == "linux"', ' ; platform_machine != "aarch64"', ' ; platform_machine == "x86_64"'):
        if where == {each for each in PLATFORMS if not words or Marker(words.lstrip(" ;")).evaluate(environment(each))}:
            return words
    raise AssertionError(f"no marker for {sorted(where)}")


def environment(platform: tuple[str, str], python: str = PYTHONS[0]) -> dict[str, str]:
    """Return what markers ask of a platform and a Python."""
    system, machine = platform
    names = {"sys_platform": system, "platform_machine": machine, "platform_system": system.capitalize(), "os_name": "posix"}
    return names | {"python_version": python, "python_full_version": f"{python}.0", "implementation_name": "cpython"}


def read(text: str) -> Iterator[Locked]:
    """Yield the lines of a lock, as uv writes them or as we do."""
    for entry in re.split(r"\n(?=[A-Za-z0-9])", re.sub(r"(?m)^\s*#.*\n", "", text)):
        head = re.match(r"(\S+)==(\S+)(?:\s*;\s*([^\\\n]+))?", entry)
        if head is None:
            continue
        name, version, words = head.groups()
        needs = {python: {each for each in PLATFORMS if fits(words, each, python)} for python in PYTHONS}
        assert len(set(map(frozenset, needs.values()))) == 1, f"{name} is not needed by each Python: {words}"
        yield Locked(name, version, frozenset(needs[PYTHONS[0]]), tuple(re.findall(r"sha256:([0-9a-f]{64})", entry)))


def fits(words: str | None, platform: tuple[str, str], python: str) -> bool:
    """Return whether a marker asks for a library there."""
    return not words or Marker(words.strip()).evaluate(environment(platform, python))


def main() -> int:
    """Resolve, check that everything can be installed everywhere, and write the locks; exit code 1 where that fails."""
    options = arguments()
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)
    wanted = project["project"]["dependencies"] + [
        each for extra in EXTRAS for each in project["project"]["optional-dependencies"][extra] if not each.startswith(OWN)
    ]
    build = [*project["build-system"]["requires"], *BUILD]
    try:
        with tempfile.TemporaryDirectory() as scratch:
            uv = Resolver(Path(scratch))
            found = uv.resolve([*wanted, *build], options.upgrade)
            names = {each.name for each in uv.resolve(build, [], pins=found)}
            docs = uv.resolve(
                project["dependency-groups"]["docs"], [], pins=beside(found, "requirements-docs", options.upgrade)
            )
            uv.check(found)
            uv.check(docs)
    except subprocess.CalledProcessError as error:
        print(f"nothing was written: {error.stderr.strip()[-2000:]}", file=sys.stderr)
        return 1
    is_cuda = {each.name for each in found if each.name.startswith(CUDA)}
    write("requirements-build", "What builds the rest; installed first", [each for each in found if each.name in names])
    write("requirements-cpu", "PyTorch without CUDA, where there is a wheel of it", without_cuda(found, options.wheels))
    write("requirements-cuda", "What PyTorch needs where its wheel has CUDA", [each for each in found if each.name in is_cuda])
    write("requirements-docs", "Everything in .venv-docs, where scripts/docs makes the site", docs)
    write("requirements", "Everything in .venv: what CI tests", [each for each in found if each.name not in is_cuda])
    return 0


def arguments() -> argparse.Namespace:
    """Parse the arguments; exits with 2 for wrong ones."""
    parser = argparse.ArgumentParser(prog="scripts/lock", description=__doc__)
    parser.add_argument(
        "--upgrade", metavar="NAME", action="append", default=[], help="a library to lock in its newest version that fits"
    )
    parser.add_argument(
        "--wheels", metavar="FOLDER", type=Path, action="append", default=[],
        help="with PyTorch's wheels without CUDA (torch-2.13.0+cpu-…), which setup then prefers",
    )  # fmt: skip
    options = parser.parse_args()
    if missing := [each for each in options.wheels if not each.is_dir()]:
        parser.error(f"{missing[0]} is no folder of wheels")
    return options


class Resolver:
    """uv, installed into a folder that is thrown away."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        venv.create(folder / "uv", with_pip=True)
        run(folder / "uv" / "bin" / "pip", "install", "--quiet", UV)
        self.uv = folder / "uv" / "bin" / "uv"

    def resolve(self, wanted: list[str], upgrade: list[str], pins: list[Locked] | None = None) -> list[Locked]:
        """Return versions for all platforms: those of ``pins`` where they fit, by default of the locks that there are."""
        kept = [each for name in LOCKS for each in read((ROOT / f"{name}.lock").read_text(encoding="utf-8"))]
        old, new, limits = (self.folder / name for name in ("old.txt", "new.txt", "pyproject.toml"))
        old.write_text("\n".join(f"{each.name}=={each.version}" for each in (pins or kept) if each.name not in upgrade))
        new.write_text("\n".join(wanted))
        below = f"python_full_version < '3.{int(PYTHONS[-1].split('.')[1]) + 1}'"
        places = [
            f"{below} and sys_platform == '{system}' and platform_machine == '{machine}'" for system, machine in PLATFORMS
        ]
        limits.write_text(f"[tool.uv]\nenvironments = {places}\n")
        words = [
            "--universal",
            "--fork-strategy",
            "fewest",
            "--generate-hashes",
            "--no-annotate",
            "--no-header",
            "--python-version",
            PYTHONS[0],
        ]
        answer = run(self.uv, "pip", "compile", new, "--constraint", old, "--system-certs", *words, cwd=self.folder)
        return list(read(answer))

    def check(self, locked: list[Locked]) -> None:
        """Look whether every Python has files for each platform, and whether nothing is missing. Raises CalledProcessError."""
        for (platform, name), python in ((each, python) for each in PLATFORMS.items() for python in PYTHONS):
            here = [each for each in locked if platform in each.where]
            lines = self.folder / "here.txt"
            lines.write_text("".join(map(str, here)))
            words = ["--dry-run", "--require-hashes", "--system-certs", "--python-platform", name, "--python-version", python]
            run(self.uv, "pip", "install", "--target", self.folder / "none", *words, "--requirement", lines, cwd=self.folder)
            print(f"Python {python} on {name}: {len(here)} libraries", file=sys.stderr)


def without_cuda(locked: list[Locked], folders: list[Path]) -> list[Locked]:
    """Return PyTorch's build without CUDA: of a folder that has one of this version, else of the lock if it still fits.

    pip prefers an index's wheel, whose hash it knows before it loads it: so this one has a lock and a version of its own.
    """
    (torch,) = (each for each in locked if each.name == "torch")
    version = f"{torch.version}+cpu"
    files = [path for folder in folders for path in sorted(folder.glob(f"torch-{version}-*.whl"))]
    old = ROOT / "requirements-cpu.lock"
    before = [each for each in read(old.read_text(encoding="utf-8")) if each.version == version] if old.exists() else []
    found = [hashlib.sha256(path.read_bytes()).hexdigest() for path in files]
    kept = [digest for each in before for digest in each.hashes if digest not in found]
    return [Locked("torch", version, torch.where, (*kept, *found))] if found or kept else []


def beside(found: list[Locked], name: str, upgrade: list[str]) -> list[Locked]:
    """Return what was found, with what another lock has beside it and is to stay."""
    known = {*upgrade, *(each.name for each in found)}
    return [*found, *(each for each in read((ROOT / f"{name}.lock").read_text(encoding="utf-8")) if each.name not in known)]


def write(name: str, what: str, locked: list[Locked]) -> None:
    """Write a lock."""
    head = f"# {what}. Made by scripts/lock.\n"
    (ROOT / f"{name}.lock").write_text(head + "".join(str(each) for each in sorted(locked, key=lambda each: each.name)))


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    """Return what a command says. Raises CalledProcessError."""
    wheels_for = {"MACOSX_DEPLOYMENT_TARGET": "14.0"}  # the oldest that ExecuTorch and PyTorch support
    return subprocess.run(command, cwd=cwd, env=os.environ | wheels_for, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    sys.exit(main())
