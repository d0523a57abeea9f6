"""Make the Debian root, and fill it with Python packages that this machine's pip chooses and downloads."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from campaigns import ROOT
from campaigns.campaign import whole
from campaigns.on_aarch64.journal import Journal
from campaigns.on_aarch64.machine import Emulation

SUITE = "bookworm"  # whose Python is 3.11
PACKAGES = ("python3", "g++", "make")


def mirror() -> str | None:
    """Return the mirror of Debian that this machine's apt uses for the suite; None for debootstrap's own default."""
    if not shutil.which("apt-get"):
        return None
    words = ["apt-get", "indextargets", "--format", "$(SITE)", "Origin: Debian", "Label: Debian", f"Codename: {SUITE}"]
    listed = subprocess.run(words, capture_output=True, text=True, check=False).stdout.split()
    return listed[0] if listed else None


def make(root: Path, journal: Journal, chosen: str | None) -> None:
    """Make the root of the suite's smallest system, Python and g++, from the ``chosen`` mirror. Raises StepError."""
    options = ["--foreign", "--arch=arm64", "--variant=minbase", "--force-check-gpg", f"--include={','.join(PACKAGES)}"]
    source = chosen or mirror()
    with whole(root) as partial:  # nothing is mounted in an earlier one: mounts are in namespaces that have ended
        journal.run(["debootstrap", *options, SUITE, partial, *([source] if source else [])])
        (partial / "etc/dpkg/dpkg.cfg.d").mkdir(parents=True, exist_ok=True)
        (partial / "etc/dpkg/dpkg.cfg.d/unsafe-io").write_text("force-unsafe-io\n")  # a root that fails is made again
        with Emulation(partial, journal) as emulation:
            # debootstrap's word for a place where no device can be made; the first stage has made them.
            emulation.run(["/debootstrap/debootstrap", "--second-stage"], environment={"container": "lxc"})


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
    platforms = [word for name in PLATFORMS for word in ("--platform", name)]
    chosen = ["--python-version", PYTHON, "--only-binary=:all:", "--no-compile", *platforms]
    with whole(target) as partial:
        journal.run([sys.executable, "-c", PIP, "install", "--no-warn-conflicts", "--target", partial, *chosen, *words])
