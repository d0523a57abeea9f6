"""The logits of a session after every token of a text, by verifying and accepting it block by block."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hybridge.runtime.core.session import Session


def logits_of(session: Session, tokens: Sequence[int]) -> Tensor:
    """Return the logits [T, V] after each of T tokens, from an empty state. Raises what ``verify`` and ``commit`` raise."""
    session.reset()
    rows = []
    for start in range(0, len(tokens), session.verify_len):
        block = tokens[start : start + session.verify_len]
        rows.append(session.verify(block))
        session.commit(len(block))
    return torch.cat(rows)
