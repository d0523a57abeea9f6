"""Calls that were begun: each happens as a whole or not at all, whatever interrupts it.

A session notes a call before it runs and settles it afterwards, in the same way whether the call came back, failed, or was
interrupted (Ctrl-C) between any two instructions. Settling may be interrupted, too: it is then done once more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from hybridge.cache.errors import ArtifactError
from hybridge.runtime.backends.methods import Methods, number
from hybridge.runtime.sessions.checkpoint import Checkpoint, Lineage, RowSegment, write_rows
from hybridge.runtime.sessions.committed_text import Change, CommittedText
from hybridge.runtime.sessions.row_buffers import RowBuffer


class Unfinished(Protocol):
    """What a session must settle before anything else."""

    def settle(self, program: Methods, text: CommittedText) -> Unfinished | None:
        """Let ``text`` say what ``program`` holds, or return what is to be settled instead."""


@dataclass(frozen=True, kw_only=True)
class Calls:
    """Calls that make ``change`` together.

    before, after: the program's number of operations without them and with all of them. undo takes some of them back; it may be
    left out for a single call, which the program makes as a whole.
    """

    change: Change
    before: int
    after: int
    undo: Unfinished | None = None

    def settle(self, program: Methods, text: CommittedText) -> Unfinished | None:
        """Decide by the number of operations. Raises ArtifactError where the program did something else."""
        done = program.operations()
        if done not in (self.before, self.after) and self.undo is None:
            raise ArtifactError(
                f"the program counts {done} operations, not {self.before} or {self.after}; reset the session, or load a state."
            )
        if done != self.after:
            return self.undo
        length = int(program.bounded()["length"])
        if length != self.change.length:
            raise ArtifactError(
                f"the program holds {length} tokens, but the calls leave {self.change.length}; reset the session, or load a "
                "state, and export the model again if it happens again."
            )
        text.take(self.change)
        return None


@dataclass(frozen=True)
class Reset:
    """An empty state and an empty text; done again from the start where it was interrupted."""

    def settle(self, program: Methods, text: CommittedText) -> None:
        program.call("reset")
        text.become(CommittedText(note=text.note))


@dataclass(frozen=True)
class PutBack:
    """Buffers of a state, by name, and the text that they belong to; all are written again where it was interrupted."""

    buffers: Mapping[str, Tensor]
    text: CommittedText

    def settle(self, program: Methods, text: CommittedText) -> None:
        if not self.text.staged:
            program.call("commit", number(0))  # drops a block that waits, and is refused without one
        state = program.state()
        for name, buffer in self.buffers.items():
            state[name].copy_(buffer)
        text.become(self.text)


@dataclass(frozen=True)
class Resume:
    """Become what ``checkpoint`` is of; all is written again where it was interrupted, and no slot keeps anything then.

    shared: the longest segment of the checkpoint whose rows the state has already; buffers: where rows lie.
    """

    checkpoint: Checkpoint
    shared: RowSegment | None
    buffers: Mapping[str, RowBuffer]

    def settle(self, program: Methods, text: CommittedText) -> None:
        program.call("commit", number(0))  # drops a block that waits, and is refused without one
        state, segments = program.state(), self.checkpoint.segment.chain()
        for name, buffer in state.items():
            if name == "slot_length" or (name.startswith("slots.") and name.endswith(".length")):
                buffer.fill_(-1)
        missing = segments if self.shared is None else segments[segments.index(self.shared) + 1 :]
        write_rows(missing, self.buffers)
        for name, buffer in self.checkpoint.bounded.items():
            state[name].copy_(buffer)
        state["length"].fill_(self.checkpoint.length)
        text.become(CommittedText(self.checkpoint.tokens, note=text.note, lineage=Lineage(segments)))
