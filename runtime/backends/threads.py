"""How many threads programs compute on: the process's pool of ExecuTorch, PyTorch's own, and which cores are worth one.

ExecuTorch makes a thread for every core. On a phone, half of these are a third as fast as the others, and share their memory:
what waits for them is slower with them than without.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import torch

from hybridge.cache.errors import ArtifactError, UsageError
from hybridge.runtime.artifacts.runtime_check import installed
from hybridge.runtime.core import library
from hybridge.runtime.native_log import first_line, without_native_log
from hybridge.runtime.pinned import EXECUTORCH, extension, reset_threads, thread_count

_FIRST_USE = threading.Lock()
"""Held while ExecuTorch makes its threads: two first uses at once wait for each other for ever, one with Python's own lock."""

CPUS = Path("/sys/devices/system/cpu")
SLOW = 0.5
"""A core of less than this share of the fastest one's speed is a slow one."""


def set_threads(count: int | None = None) -> None:
    """Let every program that this process loads from now on compute on so many threads; without ``count`` on the fast cores.

    Do not run those that were loaded before: XNNPACK keeps the threads that it found then, which are gone. onnxruntime fixes
    its number at load, too. Raises UsageError for a count below 1.
    """
    if count is not None and count < 1:
        raise UsageError(f"{count} threads cannot compute; give 1 or more, or none for the fast cores.")
    wanted = count or fast_cores()
    library.set_threads(wanted)
    with without_native_log():
        reset_threads(executorch_runtime(), wanted)
    torch.set_num_threads(wanted)


def threads() -> int:
    """Return how many threads programs compute on. Raises ArtifactError without ExecuTorch."""
    return thread_count(executorch_runtime())


@cache
def executorch_runtime() -> Any:
    """Return ExecuTorch's extension module, with as many threads as were chosen, or for the fast cores.

    Raises ArtifactError without the pinned version.
    """
    with _FIRST_USE, without_native_log():
        try:
            module = extension()
        except ImportError as error:
            raise ArtifactError(
                f"a .pte runs in ExecuTorch {EXECUTORCH}, and {installed('executorch')} is installed here "
                f"({first_line(error)}): pip install executorch=={EXECUTORCH}."
            ) from None
        # The threads are made at their first use, which logs what was read about the processor: here, not in a method's call.
        thread_count(module)
        reset_threads(module, library.chosen_threads() or fast_cores())
    return module


def fast_cores() -> int:
    """Return how many cores of the fast kind this process may run on, at least one."""
    if hasattr(os, "sched_getaffinity"):
        return _fast(map(_speed, os.sched_getaffinity(0)))
    return _apples_fast_cores() or os.cpu_count() or 1


def _fast(speeds: Iterable[int]) -> int:
    """Return how many speeds are at least half of the largest."""
    known = list(speeds)
    return sum(speed >= SLOW * max(known) for speed in known)


def _speed(cpu: int) -> int:
    """Return how fast Linux says that a core is, in units that its others have as well; 0 where it says nothing."""
    for name in ("cpu_capacity", "cpufreq/cpuinfo_max_freq"):
        try:
            return int((CPUS / f"cpu{cpu}" / name).read_text(encoding="ascii"))
        except (OSError, ValueError):
            continue
    return 0


def _apples_fast_cores() -> int:
    """Return what macOS counts as cores of its first level of performance; 0 where it does not say."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "sysctlbyname"):
        return 0
    count, size = ctypes.c_int(0), ctypes.c_size_t(ctypes.sizeof(ctypes.c_int))
    failed = library.sysctlbyname(b"hw.perflevel0.physicalcpu", ctypes.byref(count), ctypes.byref(size), None, 0)
    return 0 if failed else count.value
