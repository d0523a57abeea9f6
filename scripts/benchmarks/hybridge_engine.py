"""hybridge: one exported artifact."""

from __future__ import annotations

from ctypes import c_int64
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.engine import VERIFY, tokens
from hybridge.runtime import Checkpoint, Session, open_artifact
from hybridge.runtime.core.library import run, set_threads
from hybridge.runtime.core.saved_states import SavedState

KEPT = ("length", "staged", "operations", "_slots")
"""What names of buffers end with that hold no keys, values or recurrent states."""


class HybridgeEngine:
    """Steps of a session from a state that is made up; nobody asks for their logits, as in a generation."""

    filled: Checkpoint | None = None

    def __init__(self, artifact: str) -> None:
        self.folder = Path(artifact)

    def load(self) -> None:
        self.session = Session.of(open_artifact(self.folder))
        self.block = _ids(tokens(VERIFY, self.session.vocab_size))
        self.session.decode(1)

    def set_threads(self, count: int) -> None:
        """Threads are those of the load."""
        self.filled = None
        self.session.close()
        self.session.model.close()
        set_threads(count)
        self.load()

    def fill(self, context: int) -> None:
        """Any keys, values and states will do. They are made for the first fill of a context, and gone back to for others."""
        if self.filled is None or self.filled.length != context:
            self.filled = None
            buffers: dict[str, NDArray[Any]] = self.session.state()
            for name, buffer in buffers.items():
                if not name.startswith("slots.") and not name.rpartition(".")[2].endswith(KEPT):
                    _scatter(buffer)
            buffers["length"][:] = context
            self.session._become(SavedState(buffers, tokens(context, self.session.vocab_size), {}))
            self.filled = self.session.checkpoint()
        self.session.resume(self.filled)

    def decode(self) -> None:
        run("decode", self.session.handle, self.block[0], None)

    def verify(self, count: int) -> None:
        run("verify", self.session.handle, self.block, count, None)

    def commit(self, count: int) -> None:
        self.session.commit(count)

    def prefill(self, count: int) -> None:
        self.session.reset()
        run("prefill", self.session.handle, _ids(tokens(count, self.session.vocab_size)), count, None)


def _ids(tokens: list[int]) -> Any:
    return (c_int64 * len(tokens))(*tokens)


def _scatter(buffer: NDArray[Any]) -> None:
    """Small numbers in place."""
    rng = np.random.default_rng(0)
    if buffer.dtype.kind == "f":
        buffer[:] = rng.random(buffer.shape, np.float32) * np.float32(0.1)
    elif buffer.dtype != np.bool_:
        buffer[:] = rng.integers(0 if buffer.dtype == np.uint8 else -100, 100, buffer.shape)
