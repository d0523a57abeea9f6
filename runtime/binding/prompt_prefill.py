"""Bring a session to a text by the checkpoints of a cache, and keep checkpoints of it there."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from hybridge.runtime.binding.checkpoint import PrefixCache
from hybridge.runtime.binding.drafters import Drafter
from hybridge.runtime.binding.pictures import behind_picture
from hybridge.runtime.binding.session import Session

EVERY = 512
"""Tokens of a long text from one checkpoint to the next."""


class PromptPrefill:
    """Prefill a session with the text ``tokens``, in steps, without reading again what it or a checkpoint has.

    cached_tokens: the number of tokens that were not read. Checkpoints go into ``cache``: at the end, at ``marks`` (lengths at
    which other texts may branch off), and every ``EVERY`` tokens.
    """

    def __init__(
        self, session: Session, tokens: Sequence[int], cache: PrefixCache, marks: Collection[int] = (), *,
        rest: int = 0, drafter: Drafter | None = None,
    ) -> None:  # fmt: skip
        """Resume the longest beginning of the text that the session or a checkpoint has.

        Args:
            session: its text is replaced.
            tokens: the text.
            cache: of checkpoints.
            marks: lengths of the text at which to keep a checkpoint.
            rest: leave up to this many trailing tokens unread; the caller prefills them with the next call.
            drafter: of the generation that follows; the hidden states that it has to read are kept for it, and those of the
                artifact's own drafter are read before each checkpoint.
        """
        self.session, self.tokens, self.cache = session, list(tokens), cache
        session.resume_prefix(self.tokens, cache)
        session.keep_hidden(drafter is not None and drafter.needs_hidden, own=getattr(drafter, "own_reads", False))
        self.cached_tokens = session.length
        end = len(self.tokens)
        wanted = (*marks, *range(self.cached_tokens + EVERY, end, EVERY), end)
        self._marks = {behind_picture(self.tokens, mark) for mark in wanted}
        self._enough = max(end - rest, *(mark for mark in self._marks if mark < end), 0)

    def steps(self) -> Iterator[None]:
        """Read a prefill chunk at each step. Raises what ``Session.prefill`` does; what was read before stays."""
        session = self.session
        while (at := session.length) < self._enough:
            chunk = behind_picture(self.tokens, min(at + session.prefill_chunk, len(self.tokens)))
            stop = min(chunk, *(mark for mark in self._marks if mark > at))
            session.prefill(self.tokens[at:stop])
            if stop in self._marks:
                session.keep_checkpoint(self.cache)
            yield
        session.keep_checkpoint(self.cache)


def bring_to(
    session: Session, tokens: Sequence[int], cache: PrefixCache, marks: Collection[int] = (), *, drafter: Drafter | None = None
) -> int:
    """Bring the session to the text ``tokens`` (``PromptPrefill``); return the number of tokens that were not read."""
    reading = PromptPrefill(session, tokens, cache, marks, drafter=drafter)
    for _ in reading.steps():
        pass
    return reading.cached_tokens
