"""What campaigns share: their command lines, names of the code that they ran, files that are whole, copies of the checkout."""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

from campaigns import ROOT
from hybridge.runtime.files import remove


def parser(name: str, description: str | None, **options: Any) -> argparse.ArgumentParser:
    """Return the parser of the campaign ``name``."""
    return argparse.ArgumentParser(prog=f"scripts/trust {name}", description=description, **options)


def run(name: str, main: Callable[..., Any]) -> None:
    """Run ``main`` with its annotated parameters as the options of the campaign ``name``."""
    app = typer.Typer(add_completion=False)
    app.command()(main)
    app(prog_name=f"scripts/trust {name}")


def fingerprint(*more: str) -> str:
    """Return a hash of all code that an export depends on, and of that in the folders ``more``."""
    digest = hashlib.sha256()
    for path in sorted(path for folder in ("cache", "export", "runtime", *more) for path in (ROOT / folder).rglob("*")):
        if path.is_file() and path.suffix in {".py", ".cpp", ".h"}:
            digest.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def download(package: str, folder: Path) -> None:
    """Download the wheel of a package, which is pinned, into ``folder``. Raises CalledProcessError."""
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--quiet"]
    subprocess.run([*pip, "--dest", str(folder), package], check=True)


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Yield a name beside ``path`` for a file or folder, which takes the place of ``path`` once the body is done."""
    unfinished = path.with_name(f"{path.name}.unfinished")
    remove(unfinished)
    yield unfinished
    remove(path)
    unfinished.rename(path)


def copy_checkout(folder: Path) -> None:
    """Copy the files of the checkout that git knows, links as links, to the new ``folder``."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
