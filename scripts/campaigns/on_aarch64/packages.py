"""Python packages for the root: chosen, downloaded and unpacked by this machine's pip, which is many times as fast."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
import tempfile
import tomllib
from pathlib import Path

from campaigns import ROOT
from campaigns.on_aarch64.journal import Journal

CHECKOUT = ROOT
PYTHON = "3.11"
GLIBC = 36  # Debian 12 has 2.36: wheels for this and older ones fit
PLATFORMS = ("manylinux2014_aarch64", *(f"manylinux_2_{minor}_aarch64" for minor in range(17, GLIBC + 1)))
TOOLS = ("cmake", "pip")
"""Beside hybridge's requirements: ExecuTorch's CMake package wants a newer CMake than Debian's, and pip checks the rest."""
SOURCES = ("antlr4-python3-runtime",)
"""Requirements of requirements which are published as source alone; they are Python, so any machine's wheel will do."""
PIP = """
import platform, sys
platform.machine = lambda: "aarch64"
from pip._internal.cli.main import main
sys.exit(main())
"""
"""pip itself; --platform alone would leave markers such as ``platform_machine == "x86_64"`` to this machine."""


def requirements() -> list[str]:
    """Return hybridge's own, as pyproject.toml has them."""
    with (CHECKOUT / "pyproject.toml").open("rb") as file:
        return list(tomllib.load(file)["project"]["dependencies"])


def key() -> str:
    """Return what changes when other packages are wanted."""
    lock = (CHECKOUT / "requirements.lock").read_text(encoding="utf-8")
    return hashlib.sha256(repr([lock, requirements(), TOOLS, PYTHON, PLATFORMS]).encode()).hexdigest()[:16]


def unpack(target: Path, journal: Journal) -> None:
    """Put the versions of requirements.lock for Linux on ARM64 into ``target``, whole or not at all. Raises StepError."""
    lock = CHECKOUT / "requirements.lock"
    with tempfile.TemporaryDirectory() as built:
        pinned = re.findall(r"(?m)^\S+==\S+", lock.read_text(encoding="utf-8"))
        sources = [each for each in pinned if each.split("==")[0] in SOURCES]
        journal.run([sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", built, *sources])
        versions = Path(built, "versions.txt")  # without hashes: what is built here has another
        versions.write_text("\n".join(pinned))
        _install(target, journal, "--find-links", built, "--constraint", str(versions), *requirements(), *TOOLS)


def wheel(folder: Path, journal: Journal) -> Path:
    """Build hybridge's wheel of this checkout, without what is compiled for this machine."""
    shutil.rmtree(folder, ignore_errors=True)
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, CHECKOUT]
    journal.run(build, env=os.environ | {"HYBRIDGE_PREBUILT": "0"})
    return next(folder.glob("hybridge-*.whl"))


def unpack_hybridge(target: Path, journal: Journal, built: Path) -> None:
    """Put its wheel into ``target``, whole or not at all. Raises StepError."""
    _install(target, journal, "--no-deps", str(built))


def _install(target: Path, journal: Journal, *words: str) -> None:
    partial = target.with_name(f"{target.name}.partial")
    for path in (partial, target):
        if path.exists():
            shutil.rmtree(path)
    platforms = [word for name in PLATFORMS for word in ("--platform", name)]
    chosen = ["--target", str(partial), "--python-version", PYTHON, "--only-binary=:all:", "--no-compile", *platforms]
    journal.run([sys.executable, "-c", PIP, "install", "--no-warn-conflicts", *chosen, *words])
    partial.rename(target)
