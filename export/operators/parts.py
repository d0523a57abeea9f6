"""Work on a weight [N, K] in parts that stay in the processor's cache, on all cores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor

from hybridge.runtime.pack.panels import LANES

Part = TypeVar("Part")

CHUNK = 1 << 18
"""Elements that are processed at once. They stay in the processor's cache, which makes it ten times faster."""


def by_panels(panels: int, columns: int, change: Callable[[slice], Part]) -> list[Part]:
    """Return what ``change`` makes of the panels of a weight, which has ``panels`` of them, a few at a time.

    Each thread takes parts of its own, so that none waits for another at every operation.
    """
    size = max(1, CHUNK // (columns * LANES))
    parts = [slice(first, first + size) for first in range(0, panels, size)]
    threads = min(torch.get_num_threads(), len(parts))
    with one_thread(), ThreadPoolExecutor(threads) as pool:
        return list(pool.map(change, parts))


def by_rows(weight: Tensor, change: Callable[[Tensor], Part]) -> list[Part]:
    """Return what ``change`` makes of a weight [N, K], whole panels at a time except the last rows, on all cores."""
    weight = weight.detach()
    panels = -(-len(weight) // LANES)
    return by_panels(panels, weight.shape[1], lambda part: change(weight[part.start * LANES : part.stop * LANES]))


@contextmanager
def one_thread() -> Iterator[None]:
    """Run the body with one thread, because threads that wait for each other at every chunk cost far more than they save."""
    count = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(count)
