"""hybridge: one exported artifact."""

from __future__ import annotations

from ctypes import c_int64
from pathlib import Path
from typing import Any

from campaigns.bench.worker import VERIFY, tokens
from hybridge.runtime import Checkpoint, Session, open_artifact
from hybridge.runtime.binding.library import run, set_threads


class HybridgeEngine:
    """Steps of a session; nobody asks for their logits, as in a generation."""

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
        """Prefill the first time, and resume a checkpoint of that text for the others."""
        if self.filled is None or self.filled.length != context:
            self.filled = None
            self.prefill(context)
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
