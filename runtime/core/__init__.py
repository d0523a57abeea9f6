"""The native core in Python: ``hybridge.h`` over ctypes and numpy, without PyTorch. Each name is imported at its first use.

``library.load`` finds or compiles libhybridge from ``runtime/native``; ``session`` is what a caller holds.
"""

from typing import TYPE_CHECKING

from hybridge.cache.deferred import deferred

if TYPE_CHECKING:
    from hybridge.runtime.core.generation import Generated, Propose
    from hybridge.runtime.core.model import Cached, Model
    from hybridge.runtime.core.sampling import Sampling
    from hybridge.runtime.core.session import Checkpoint, Session

__all__ = ["Cached", "Checkpoint", "Generated", "Model", "Propose", "Sampling", "Session"]

if not TYPE_CHECKING:  # else a type checker would believe in every name
    __getattr__ = deferred(
        __name__,
        {
            "Cached": "hybridge.runtime.core.model",
            "Checkpoint": "hybridge.runtime.core.session",
            "Generated": "hybridge.runtime.core.generation",
            "Model": "hybridge.runtime.core.model",
            "Propose": "hybridge.runtime.core.generation",
            "Sampling": "hybridge.runtime.core.sampling",
            "Session": "hybridge.runtime.core.session",
        },
    )
