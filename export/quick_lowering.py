"""Make the pinned lowering faster without changing what comes out of it.

Measured with the embedded model, 8 methods (docs/benchmarks.md): most of the time goes into walking every graph many times, a
sixth of it into copying the history of each node, a third into backend passes that have nothing to do here.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from executorch.backends.xnnpack import _passes as xnnpack_passes
from torch.fx import traceback

POINTLESS_XNNPACK_PASSES = frozenset(
    {
        "ConvertToUpsampleBilinear2d",  # images
        "ConvertToSDPAPass",  # attention never reaches XNNPACK: it is a kernel of its own or several islands
        "FuseBatchNormPass",
        "DecomposeBatchNorm",
        "PReLUReshapePass",
        "PropagateCustomMetaPass",
    }
)

NEVER = 1_000_000
"""Collections of the younger objects before one of all."""


@contextmanager
def quick_lowering() -> Iterator[None]:
    """Inside, nodes carry no history from pass to pass, and XNNPACK skips the passes that no language model needs."""
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(traceback.NodeSource, "__init__", _without_history))
        stack.enter_context(
            mock.patch("executorch.backends.xnnpack.xnnpack_preprocess.XNNPACKPassManager", _ShorterPassManager)
        )
        stack.enter_context(_young_garbage_collection())
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


def _without_history(self: Any, node: Any, pass_name: str = "", action: Any = None) -> None:
    self.pass_name, self.action, self.from_node = pass_name, [], []
    self.node_info = self._action_string = self._dict = None


class _ShorterPassManager(xnnpack_passes.XNNPACKPassManager):  # type: ignore[misc]  # untyped upstream
    def __init__(self, exported_program: Any, passes: Any = None) -> None:
        super().__init__(exported_program, passes)
        self.passes: list[Any] = [each for each in self.passes if each.__name__ not in POINTLESS_XNNPACK_PASSES]
