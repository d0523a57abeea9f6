"""What of a session's state decides what comes."""

from __future__ import annotations

import torch
from hybridge.runtime.sessions.row_buffers import row_buffers
from torch import Tensor

from hybridge.runtime import Session
from hybridge.runtime.core.checkpoint import Checkpoint


def seen(session: Session) -> dict[str, Tensor]:
    """All of a state that decides what comes: bounded buffers, and the rows that count."""
    state, bounded = session.model.program.state(), session.model.program.bounded()
    rows = row_buffers(state, bounded, session.manifest.options)
    return {name: each.clone() for name, each in bounded.items()} | {
        name: each.read(0, each.filled(state)) for name, each in rows.items()
    }


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    bits = [{name: each.contiguous().view(torch.uint8) for name, each in state.items()} for state in (one, other)]
    return one.keys() == other.keys() and all(torch.equal(bits[0][name], bits[1][name]) for name in one)


def around_a_restore(session: Session) -> tuple[Checkpoint, Checkpoint]:
    """Checkpoints of an empty session: after its first tokens, and once it has gone on and come back to a later snapshot."""
    session.prefill([4, 5, 6, 7])
    first = session.checkpoint()
    session.prefill([5, 6])
    session.snapshot(0)
    session.prefill([7, 8])
    session.restore(0)
    return first, session.checkpoint()
