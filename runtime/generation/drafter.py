"""What a drafter is: something that guesses what comes next. A wrong guess costs time and never changes the text."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from hybridge.runtime.generation.sampling import Proposal, Sampler


@dataclass
class Context:
    """What a generation lets its drafter see; tokens only ever grow while it lasts.

    tokens: the session's whole text, prompt and output; the last one is not committed yet. sampler: how the target draws.
    """

    tokens: list[int]
    sampler: Sampler
    _hidden: list[Tensor] = field(default_factory=list)

    def add_hidden(self, hidden: Tensor) -> None:
        """Tapped hidden states [n, F] of tokens that were just committed."""
        self._hidden.append(hidden)

    def take_hidden(self) -> Tensor:
        """Those [n, F] of the last n committed tokens, n since they were last taken."""
        taken = torch.cat(self._hidden) if self._hidden else torch.empty(0, 0)
        self._hidden.clear()
        return taken


class Drafter(Protocol):
    """Guesses what comes next. One drafter may serve one generation after the other."""

    @property
    def needs_hidden(self) -> bool:
        """Whether the context should collect the target's tapped hidden states."""

    @property
    def is_free(self) -> bool:
        """Whether proposing takes next to no time: it is then asked every round, and its proposals say their chance."""

    def propose(self, context: Context, limit: int) -> Proposal:
        """At most ``limit`` ≥ 1 tokens that may follow ``context.tokens``; none where it has no idea."""
