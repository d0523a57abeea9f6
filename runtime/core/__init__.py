"""The native core in Python: ``hybridge.h`` over ctypes and numpy, without PyTorch.

``library.load`` finds or compiles libhybridge from ``runtime/native``; ``session`` has models, sessions and checkpoints.
"""

from hybridge.runtime.core.generation import Generated, Propose
from hybridge.runtime.core.model import Cached, Model
from hybridge.runtime.core.sampling import Sampling
from hybridge.runtime.core.session import Checkpoint, Session

__all__ = ["Cached", "Checkpoint", "Generated", "Model", "Propose", "Sampling", "Session"]
