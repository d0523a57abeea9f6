"""Run test files over a mutated checkout, in forks of a process that has the libraries loaded already."""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

LISTED = """
import sys, warnings
warnings.simplefilter("ignore")
import hybridge.export.write.pte, hypothesis, pytest
print(*(name for name in sys.modules if not name.startswith(("hybridge", "__"))), sep="\\n")
"""
FOLDERS = ("cache", "runtime", "export", "src", "tests", "scripts", "examples", "docs")


class Runner:
    """A copy of the checkout, in which one module at a time is mutated."""

    def __init__(self, checkout: Path, copy: Path) -> None:
        self.copy = copy
        for name in FOLDERS:
            shutil.copytree(checkout / name, copy / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        for path in (*checkout.glob("*.toml"), *checkout.glob("*.md"), *checkout.glob("*.lock"), checkout / "hatch_build.py"):
            shutil.copy(path, copy / path.name)
        self.environment = {
            "PYTHONPATH": str(copy / "src"), "PYTHONDONTWRITEBYTECODE": "1", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1",
            "HYBRIDGE_TEST_STORE": f"{copy}-store",  # mutants that change no export share what was exported
        }  # fmt: skip
        os.environ.update(self.environment)
        listed = subprocess.run([sys.executable, "-W", "ignore", "-c", LISTED], capture_output=True, text=True, check=True)
        for name in listed.stdout.splitlines():
            with contextlib.suppress(Exception):  # a part of a library that is made otherwise
                importlib.import_module(name)
        assert not [name for name in sys.modules if name.startswith("hybridge")]
        sys.path.insert(0, str(copy / "src"))
        self._passes: dict[str, bool] = {}

    def passes(self, test: str, seconds: float) -> bool:
        """Return whether a test file passes where nothing is mutated: one that does not can notice nothing."""
        if test not in self._passes:
            self._passes[test] = self.outcome([test], seconds) == "passed"
        return self._passes[test]

    @contextlib.contextmanager
    def mutated(self, module: str, source: str) -> Iterator[None]:
        """Let a module of the copy have another source."""
        path = self.copy / module
        before = path.read_text(encoding="utf-8")
        path.write_text(source, encoding="utf-8")
        try:
            yield
        finally:
            path.write_text(before, encoding="utf-8")

    def outcome(self, tests: Sequence[str], seconds: float) -> str:
        """Return ``passed``, ``failed`` or ``no end`` of test files; they and what they start have ended then."""
        child = os.fork()
        if child == 0:
            os.setsid()
            self._run(tests)
        end = time.monotonic() + seconds
        while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < end:
            time.sleep(0.05)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        if ended == (0, 0):
            os.waitpid(child, 0)
            return "no end"
        return "passed" if os.waitstatus_to_exitcode(ended[1]) == 0 else "failed"

    def _run(self, tests: Sequence[str]) -> None:
        """In the child."""
        status = 1
        try:
            silent = os.open(os.devnull, os.O_RDWR)
            for number in range(3):
                os.dup2(silent, number)
            os.chdir(self.copy)
            import pytest

            words = [
                "-x",
                "-q",
                "-W",
                "ignore::pytest.PytestAssertRewriteWarning",
                "--numprocesses=0",
                "-p",
                "no:cacheprovider",
                f"--basetemp={self.copy}-tests",
            ]
            status = int(pytest.main([*words, *(f"tests/{name}" for name in tests)]))
        finally:
            os._exit(status)
