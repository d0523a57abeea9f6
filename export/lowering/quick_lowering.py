"""Make the pinned lowering faster without changing what comes out of it.

Measured with the embedded model, 8 methods (docs/benchmarks.md): most of the time goes into walking every graph many times, a
sixth of it into copying the history of each node, a third into backend passes that have nothing to do here.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from hybridge.export.pinned.emission import constants_in_place
from hybridge.export.pinned.torch_export import fewer_decompositions, known_operators, late_code, without_history
from hybridge.export.pinned.xnnpack import fewer_passes, quick_merges, weights_held_once

NEVER = 1_000_000
"""Collections of the younger objects before one of all."""


@contextmanager
def quick_lowering() -> Iterator[None]:
    """Inside, nodes carry no history, graphs have no code, XNNPACK skips what finds nothing here, each weight is held once."""
    with (
        without_history(),
        late_code(),
        known_operators(),
        fewer_decompositions(),
        fewer_passes(),
        quick_merges(),
        weights_held_once(),
        constants_in_place(),
        _young_garbage_collection(),
    ):
        yield


@contextmanager
def _young_garbage_collection() -> Iterator[None]:
    """Graphs are millions of live objects that the collector would walk again and again: a quarter of the time.

    It walks the new ones alone, a fifth of a million at a time; without that a program for XNNPACK takes a gigabyte more.
    """
    before = gc.get_threshold()
    gc.set_threshold(200_000, 20, NEVER)
    try:
        yield
    finally:
        gc.set_threshold(*before)
