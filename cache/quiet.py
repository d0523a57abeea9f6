"""Libraries kept from talking about themselves."""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_ONE_AT_A_TIME = threading.RLock()


@contextmanager
def quiet() -> Iterator[None]:
    """Show no warnings, of the module or logged: PyTorch and ExecuTorch warn of their own deprecations by the hundred.

    These settings are the process's, so a second thread waits until the first is done, lest it keeps what the first has set.
    """
    with _ONE_AT_A_TIME, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        level = logging.root.manager.disable
        logging.disable(max(level, logging.WARNING))
        try:
            yield
        finally:
            logging.disable(level)
