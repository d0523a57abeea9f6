"""Run a command line in this process."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable

import pytest


def exit_code(monkeypatch: pytest.MonkeyPatch, main: Callable[[], object], *words: object) -> int:
    """How ``main`` leaves after it was called by these words; logging and warnings that it switched off are then on again."""
    monkeypatch.setattr(sys, "argv", list(map(str, words)))
    disabled = logging.root.manager.disable
    try:
        with pytest.raises(SystemExit) as exit_, warnings.catch_warnings():
            main()
    finally:
        logging.disable(disabled)
    return int(exit_.value.code or 0)
