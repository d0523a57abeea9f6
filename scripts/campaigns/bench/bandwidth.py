"""Measure how fast this machine reads memory, with as many threads as the engines that are measured beside it."""

from __future__ import annotations

import torch

from hybridge.export.profile import parts


class Bandwidth:
    """Measured again in every round, so that it sees the same noise as the engines."""

    def __init__(self) -> None:
        self._memory = parts.Bandwidth()

    def measure(self, threads: int) -> float:
        """Bytes per second, the median of three."""
        torch.set_num_threads(threads)
        return self._memory.measure(times=3)
