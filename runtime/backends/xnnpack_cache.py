"""XNNPACK's weight cache, which ExecuTorch's Python package has no switch for: one C++ function, compiled like the kernels.

XNNPACK reads weights in an order of its own, and without the cache it makes such a copy for every method of every session.
"""

from __future__ import annotations

import functools
import logging
from pathlib import Path

from hybridge.cache.errors import KernelsError
from hybridge.runtime.kernels import compiling
from hybridge.runtime.pinned import MACROS, XNNPACK_LIBRARY
from hybridge.runtime.platforms import HERE

SOURCE = Path(__file__).with_suffix(".cpp")
NAME = HERE.library("hybridge_xnnpack")
FLAGS = ("-std=c++20", "-O1", "-fPIC", "-shared", *MACROS)
LOG = logging.getLogger(__name__)


@functools.cache
def share_packed_weights() -> bool:
    """Switch the cache on for what this process loads from now on; whether that worked, which may need a C++ compiler.

    Without it programs run as well, in several times the memory.
    """
    try:
        return bool(compiling.load_plugin(library(), XNNPACK_LIBRARY).hybridge_share_packed_weights())
    except (KernelsError, OSError) as error:
        LOG.info("XNNPACK packs weights anew for every method: %s", error)
        return False


def library() -> Path:
    """Return the switch, compiled if need be. Raises KernelsError."""
    if made := compiling.prebuilt(NAME):
        return made
    chosen = compiling.compiler()
    if chosen is None:
        raise KernelsError("there is no C++ compiler")
    path = compiling.cache_folder("xnnpack") / compiling.key([SOURCE], chosen, FLAGS) / NAME
    return compiling.built(path, lambda unfinished: _compile(chosen, unfinished))


def _compile(compiler: str, path: Path) -> None:
    links = compiling.plugin_flags(XNNPACK_LIBRARY)
    command = [compiler, *FLAGS, *compiling.include_flags(), str(SOURCE), "-o", str(path), *links]
    if errors := compiling.errors_of(command, path.parent):
        raise KernelsError(f"the switch does not compile {errors}")
