"""Environments for clients that the project's own cannot have: exact versions, made once, kept in the user's cache."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from filelock import FileLock

from campaigns.clients.client import ClientError
from hybridge.runtime.kernels.compiling import cache_folder

REQUIREMENTS = Path(__file__).parent / "requirements"
"""A file for each environment, with every package in it pinned."""


def python_of(name: str) -> Path:
    """Return the interpreter of the environment ``name``, making it at first use. Raises ClientError where that fails."""
    requirements = REQUIREMENTS / f"{name}.txt"
    key = hashlib.sha256(requirements.read_bytes() + sys.version.encode()).hexdigest()[:8]
    folder = cache_folder("clients") / f"{name}-{key}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not (folder / "installed").exists():
            _make(folder, requirements)
    return folder / "bin" / "python"


def _make(folder: Path, requirements: Path) -> None:
    """All of it or nothing."""
    print(f"Setting up {folder} (once)", file=sys.stderr)
    _run(folder, [sys.executable, "-m", "venv", "--clear", "--without-pip", str(folder)])
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install", "--quiet"]
    _run(folder, [*pip, "--disable-pip-version-check", "--requirement", str(requirements)])
    (folder / "installed").touch()


def _run(folder: Path, command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        shutil.rmtree(folder, ignore_errors=True)
        said = [line for line in done.stderr.splitlines() if "ERROR" in line] or done.stderr.splitlines()[-1:]
        raise ClientError(f"{folder.name} cannot be installed: {' '.join(said)[-300:] or 'no reason given'}")
