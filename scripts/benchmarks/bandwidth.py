"""Measure how fast this machine reads memory: the limit of decoding, which reads every weight once."""

from __future__ import annotations

import time

import torch

NUMBERS = 2**27
"""Of 4 bytes: 512 MB, far beyond the last cache."""


class Bandwidth:
    """Measured again in every round, so that it sees the same noise as the engines."""

    def __init__(self) -> None:
        self.buffer = torch.ones(NUMBERS, dtype=torch.int32)

    def measure(self, threads: int, times: int = 3) -> float:
        """Bytes per second of the largest number of the buffer, the median of ``times``."""
        torch.set_num_threads(threads)
        rates = []
        for _ in range(times):
            start = time.perf_counter()
            self.buffer.max()
            rates.append(self.buffer.nbytes / (time.perf_counter() - start))
        return sorted(rates)[times // 2]
