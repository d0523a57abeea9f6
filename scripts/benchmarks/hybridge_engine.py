"""hybridge: one exported artifact."""

from __future__ import annotations

from pathlib import Path

import torch
from hybridge.runtime.backends.load import load_program

from benchmarks.engine import VERIFY, tokens
from hybridge.runtime.artifacts.artifact import open_artifact
from hybridge.runtime.core.library import set_threads
from hybridge.runtime.core.programs import number, padded
from hybridge.runtime.core.session import Session


class HybridgeEngine:
    """Methods are called on the program, so that a context needs no text."""

    def __init__(self, artifact: str) -> None:
        self.folder = Path(artifact)
        self.context = -1

    def load(self) -> None:
        artifact = open_artifact(self.folder)
        self.program = load_program(artifact)
        session = Session(self.program, artifact.manifest)
        self.chunk, self.vocabulary = session.prefill_chunk, session.vocab_size
        self.block = torch.tensor([tokens(VERIFY, self.vocabulary)])
        session.decode(1)

    def set_threads(self, count: int) -> None:
        """Threads are those of the load."""
        del self.program
        set_threads(count)
        self.load()
        self.context = -1

    def fill(self, context: int) -> None:
        """Any keys, values and states will do; only the first time, then the length alone says where the state ends."""
        state = self.program.state()
        if self.context < 0:
            for name, buffer in state.items():
                if not name.startswith("slots.") and not name.rpartition(".")[2].endswith(
                    ("length", "staged", "operations", "_slots")
                ):
                    _scatter(buffer)
        self.program.call("commit", number(0))  # drops a block that waits
        state["length"].fill_(context)
        self.context = context

    def decode(self) -> None:
        self.program.call("decode", self.block[:, :1])

    def verify(self, count: int) -> None:
        self.program.call("verify", self.block[:, :count])

    def commit(self, count: int) -> None:
        self.program.call("commit", number(count))

    def prefill(self, count: int) -> None:
        self.program.call("reset")
        ids = tokens(count, self.vocabulary)
        for start in range(0, count, self.chunk):
            part = ids[start : start + self.chunk]
            self.program.call("prefill", padded(part, self.chunk), number(len(part)))
        self.context = -1


def _scatter(buffer: torch.Tensor) -> None:
    """Small numbers in place."""
    if buffer.is_floating_point():
        buffer.uniform_(0.0, 0.1)
    else:
        buffer.random_(-100, 100)
