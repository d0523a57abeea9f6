"""How fast this machine reads memory: the limit of a decode, which reads every weight once."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

Clock = Callable[[], float]
NUMBERS = 2**27
"""Of 4 bytes: 512 MB, far beyond the last cache."""


class Bandwidth:
    """Memory to read, again and again, so that every measurement sees the same noise as what is compared with it."""

    def __init__(self, numbers: int = NUMBERS) -> None:
        self._numbers = torch.ones(numbers, dtype=torch.int32)

    def measure(self, times: int = 1, clock: Clock = time.perf_counter) -> float:
        """Return bytes per second of one pass over all of it on PyTorch's threads, the median of ``times``."""
        rates = []
        for _ in range(times):
            start = clock()
            self._numbers.max()
            rates.append(self._numbers.nbytes / (clock() - start))
        return sorted(rates)[times // 2]
