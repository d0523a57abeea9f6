"""XNNPACK's weight cache, which ExecuTorch's Python package has no switch for: one C++ function, compiled at first use.

XNNPACK reads weights in an order of its own, and without the cache it makes such a copy for every method of every session.
"""

from __future__ import annotations

import ctypes
import functools
import logging
from pathlib import Path

from hybridge.cache.errors import KernelsError
from hybridge.runtime.kernels import compiling
from hybridge.runtime.pinned import MACROS, XNNPACK_LIBRARY
from hybridge.runtime.platforms import HERE

SOURCE = Path(__file__).with_suffix(".cpp")
FLAGS = ("-std=c++20", "-O1", "-fPIC", "-shared", *MACROS)
LOG = logging.getLogger(__name__)


@functools.cache
def share_packed_weights() -> bool:
    """Switch the cache on for what this process loads from now on; whether that worked, which needs a C++ compiler.

    Without it programs run as well, in several times the memory.
    """
    try:
        return bool(ctypes.CDLL(str(_library())).hybridge_share_packed_weights())
    except (KernelsError, OSError) as error:
        LOG.info("XNNPACK packs weights anew for every method: %s", error)
        return False


def _library() -> Path:
    chosen = compiling.compiler()
    if chosen is None:
        raise KernelsError("there is no C++ compiler")
    library = compiling.cache_folder("xnnpack") / compiling.key([SOURCE], chosen, FLAGS) / HERE.library("hybridge_xnnpack")
    return compiling.built(library, lambda unfinished: _compile(chosen, unfinished))


def _compile(compiler: str, library: Path) -> None:
    links = compiling.link_flags(XNNPACK_LIBRARY)
    command = [compiler, *FLAGS, *compiling.include_flags(), str(SOURCE), "-o", str(library), *links]
    if errors := compiling.errors_of(command, library.parent):
        raise KernelsError(f"the switch does not compile {errors}")
