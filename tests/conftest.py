"""Load what tests share, but not in the process that hands tests to workers: they start seconds earlier without it."""

from __future__ import annotations

import gc
import os
import warnings
from importlib import import_module

import pytest
from workers import hands_out_tests

# A process for each core, each with one thread: threads that share a core spend their time waiting for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")  # before PyTorch starts

pytest_plugins = ["selection", "budget"]


@pytest.hookimpl(tryfirst=True)  # before the budget, which watches the exporter
def pytest_configure(config: pytest.Config) -> None:
    if hands_out_tests(config):
        return
    gc.disable()  # imports and collection make a million objects, and little garbage
    with warnings.catch_warnings():
        # What the pinned libraries say of themselves while they are imported.
        warnings.simplefilter("ignore")
        import_module("hybridge.export.pinned.stock_operators")  # before others import ExecuTorch, at three times the cost
        config.pluginmanager.import_plugin("shared_fixtures")


def pytest_collection_finish() -> None:
    gc.enable()
