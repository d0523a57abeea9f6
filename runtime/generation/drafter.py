"""A drafter proposes draft tokens. A rejected draft token costs time and never changes the text."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from hybridge.runtime.generation.sampling import Proposal, Sampler


@dataclass
class Context:
    """A drafter's view of a generation; tokens only ever grow while it lasts.

    tokens: the session's whole text, prompt and output; the last one is not committed yet. sampler: how the target draws.
    """

    tokens: list[int]
    sampler: Sampler
    _hidden: list[Tensor] = field(default_factory=list)

    def add_hidden(self, hidden: Tensor) -> None:
        """Add tapped hidden states [n, F] of tokens that were just committed."""
        self._hidden.append(hidden)

    def pop_hidden(self) -> Tensor:
        """Return and forget the hidden states [n, F] of the last n committed tokens, n since the last call."""
        hidden = torch.cat(self._hidden) if self._hidden else torch.empty(0, 0)
        self._hidden.clear()
        return hidden


class Drafter(Protocol):
    """Proposes what comes next. One drafter may serve one generation after the other."""

    @property
    def needs_hidden(self) -> bool:
        """Return whether the context should collect the target's tapped hidden states."""

    @property
    def is_free(self) -> bool:
        """Return whether proposing takes next to no time: it is then asked every round, and its proposals have a chance."""

    def propose(self, context: Context, limit: int) -> Proposal:
        """Propose at most ``limit`` ≥ 1 tokens that may follow ``context.tokens``; none if it has no idea."""
