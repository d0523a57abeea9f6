"""Run a command line, in this process or as a user does."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

SCRIPT = Path(sys.executable).parent / "hybridge"
FRAMES = re.compile(r"[\s│╭╮╰╯─┃]+")
WITHOUT_TORCH = """
import sys
sys.modules.update(dict.fromkeys(("torch", "transformers", "executorch.extension")))
from hybridge.__main__ import main
sys.argv = ["hybridge", *sys.argv[1:]]
main()
"""
"""A program that runs a command line as if PyTorch were not installed."""


def exit_code(monkeypatch: pytest.MonkeyPatch, main: Callable[[], object], *words: object) -> int:
    """Return how ``main`` leaves after these words called it; logging and warnings that it switched off are then on again."""
    monkeypatch.setattr(sys, "argv", list(map(str, words)))
    disabled = logging.root.manager.disable
    try:
        with pytest.raises(SystemExit) as exit_, warnings.catch_warnings():
            main()
    finally:
        logging.disable(disabled)
    return int(exit_.value.code or 0)


@dataclass(frozen=True)
class Outcome:
    """What a command left behind. The texts have no frames and no line breaks."""

    code: int
    out: str
    err: str
    raw: str = ""


Run = Callable[..., Outcome]


def outcome(code: int, out: str, err: str) -> Outcome:
    assert "Traceback" not in out + err
    return Outcome(code, *(FRAMES.sub(" ", text).strip() for text in (out, err)), raw=out)


def run_script(*arguments: object) -> Outcome:
    """Run a command as a user does."""
    done = subprocess.run([SCRIPT, *map(str, arguments)], check=False, capture_output=True, text=True, timeout=120)
    return outcome(done.returncode, done.stdout, done.stderr)
