"""Bring a session to a text, without reading again what it or a checkpoint knows."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import torch
from torch import Tensor

from hybridge.runtime.generation.drafter import Drafter
from hybridge.runtime.sessions.prefix_cache import PrefixCache
from hybridge.runtime.sessions.session import Session

EVERY = 512
"""Tokens of a long text from one checkpoint to the next."""


class Reading:
    """Brings a session to the text ``tokens``, in steps.

    known: how many tokens were not read; hidden [n, F]: tapped hidden states of the n that were, where the artifact has any.
    Checkpoints go into ``cache``: where reading ends, at ``marks`` (lengths of the text at which others may go another way),
    and every ``EVERY`` tokens.
    """

    def __init__(
        self, session: Session, tokens: Sequence[int], cache: PrefixCache, marks: Collection[int] = (), *, rest: int = 0
    ) -> None:
        """Goes back to the longest beginning of the text that the session or a checkpoint is of.

        rest: so many tokens at the end may be left out, for the caller to read with what follows them.
        """
        self.session, self.tokens, self.cache = session, list(tokens), cache
        go_back(session, self.tokens, cache)
        self.known = session.length
        end = len(self.tokens)
        self._marks = {*marks, *range(self.known + EVERY, end, EVERY), end}
        self._enough = max(end - rest, *(mark for mark in self._marks if mark < end), 0)
        self._hidden: list[Tensor] = []

    @property
    def hidden(self) -> Tensor:
        """Return the tapped hidden states of all that was read."""
        return torch.cat(self._hidden) if self._hidden else torch.empty(0, 0)

    def hidden_for(self, drafter: Drafter | None) -> Tensor | None:
        """Return these hidden states if ``drafter`` wants any and there are some; they are what it has not seen yet."""
        if drafter is None or not drafter.needs_hidden:
            return None
        hidden = self.hidden
        return hidden if len(hidden) else None

    def steps(self) -> Iterator[None]:
        """Read a prefill chunk at each step. Raises what ``Session.prefill`` does; what was read before stays."""
        session = self.session
        while (at := session.length) < self._enough:
            stop = min(at + session.prefill_chunk, *(mark for mark in self._marks if mark > at))
            session.prefill(self.tokens[at:stop])
            self._hidden.append(session.hidden)
            if stop in self._marks:
                keep(session, self.cache)
            yield
        keep(session, self.cache)


def bring_to(session: Session, tokens: Sequence[int], cache: PrefixCache, marks: Collection[int] = ()) -> int:
    """Leave the session at the text ``tokens``, see ``Reading``; returns how many tokens it did not read."""
    reading = Reading(session, tokens, cache, marks)
    for _ in reading.steps():
        pass
    return reading.known


def go_back(session: Session, tokens: list[int], cache: PrefixCache) -> None:
    """Leave the session at the longest beginning of ``tokens`` that its state or a checkpoint is of."""
    now, found = session.tokens, cache.find(tokens)
    known = len(now) if tokens[: len(now)] == now else -1
    if found is not None and found.length > known:
        session.resume(found)
    elif known < 0:
        session.reset()


def keep(session: Session, cache: PrefixCache) -> None:
    """Let the cache have a checkpoint of the session's text, if there is any and it has none and may keep any."""
    if cache.budget and session.length and not cache.has(session.tokens):
        cache.add(session.checkpoint())
