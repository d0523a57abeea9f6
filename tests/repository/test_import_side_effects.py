"""Importing hybridge changes nothing of the process, wherever it is imported."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from hybridge.imports import without_collections

pytestmark = pytest.mark.slow

IMPORT_ALL = """
import importlib, logging, pkgutil, signal, threading, warnings
warnings.simplefilter("ignore")
import torch, transformers  # have side effects of their own

def handlers():
    return {number: signal.getsignal(number) for number in signal.valid_signals()}

before, disabled = handlers(), logging.root.manager.disable
import hybridge

failed = []

def import_all():
    for module in pkgutil.walk_packages(hybridge.__path__, "hybridge."):
        try:
            importlib.import_module(module.name)
        except BaseException as error:
            failed.append(f"{module.name}: {error!r}")

worker = threading.Thread(target=import_all)
worker.start()
worker.join()
assert not failed, failed
assert handlers() == before
assert logging.root.manager.disable == disabled
"""


@pytest.mark.thorough
def test_every_module_can_be_imported_in_a_thread_and_touches_no_signal() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORT_ALL], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_an_import_without_collections_leaves_the_collector_as_it_was() -> None:
    with without_collections():
        inside = gc.isenabled()
    assert (inside, gc.isenabled()) == (False, True)
