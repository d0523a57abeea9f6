"""Import names of packages at their first use (PEP 562), and libraries of the export half without their warnings.

Importing a module of such a package does not load PyTorch, which an environment that only runs artifacts does not have.
"""

from __future__ import annotations

import gc
import logging
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from hybridge.errors import UsageError

EXPORT = "pip install 'hybridge[export]'"
"""The command that installs the libraries for exports and checks."""
OF_EXPORT = frozenset({"executorch", "huggingface_hub", "safetensors", "sentencepiece", "torch", "torchao", "transformers"})
"""The libraries that this brings, by the names under which they are imported."""


def deferred(package: str, modules: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of ``package``, whose names come from ``modules``: the names by the module."""
    places = {name: module for module, names in modules.items() for name in names}

    def find(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(places[name]), name)

    return find


@contextmanager
def needs_export(who: str) -> Iterator[None]:
    """Run a block that may import a library of the extra ``export``. Raises UsageError if it is not installed.

    who: the command or the name that was asked for.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in OF_EXPORT:
            raise
        raise UsageError(f"{who} needs what makes artifacts: {EXPORT}.") from None


@contextmanager
def without_collections() -> Iterator[None]:
    """Import PyTorch and what is beside it without garbage collections, a ninth of that time: hardly any of it is garbage."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


_ONE_AT_A_TIME = threading.RLock()


@contextmanager
def quiet() -> Iterator[None]:
    """Show no warnings, of the module or logged: PyTorch and ExecuTorch warn of their own deprecations by the hundred.

    These settings are the process's, so a second thread waits until the first is done: it would restore what the first has set.
    """
    with _ONE_AT_A_TIME, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        level = logging.root.manager.disable
        logging.disable(max(level, logging.WARNING))
        try:
            yield
        finally:
            logging.disable(level)
