"""Bring a session to a text, without reading again what it or a checkpoint knows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from hybridge.runtime.sessions.prefix_cache import PrefixCache
from hybridge.runtime.sessions.session import Session

EVERY = 512
"""Tokens of a long text from one checkpoint to the next."""


def bring_to(session: Session, tokens: Sequence[int], cache: PrefixCache, marks: Iterable[int] = ()) -> int:
    """Leave the session at the text ``tokens``; returns how many tokens it did not read.

    Checkpoints of it go into ``cache``: at the end, at ``marks`` (lengths of the text at which others may go another way), and
    every ``EVERY`` tokens. Raises what ``Session.prefill`` does; the session is then at the end of what was read.
    """
    steps = reading(session, tokens, cache, marks)
    known = next(steps)
    for _ in steps:
        pass
    return known


def reading(session: Session, tokens: Sequence[int], cache: PrefixCache, marks: Iterable[int] = ()) -> Iterator[int]:
    """Do what ``bring_to`` does in steps: yields the length that was known, then that after each piece that was read."""
    text = list(tokens)
    go_back(session, text, cache)
    yield session.length
    for stop in _stops(session.length, len(text), marks):
        session.prefill(text[session.length : stop])
        keep(session, cache)
        yield stop
    keep(session, cache)


def go_back(session: Session, tokens: list[int], cache: PrefixCache) -> None:
    """Leave the session at the longest beginning of ``tokens`` that its state or a checkpoint is of."""
    now, found = session.tokens, cache.find(tokens)
    known = len(now) if tokens[: len(now)] == now else -1
    if found is not None and found.length > known:
        session.resume(found)
    elif known < 0:
        session.reset()


def keep(session: Session, cache: PrefixCache) -> None:
    """Let the cache have a checkpoint of the session's text, if it has none and may keep any."""
    if cache.budget and not cache.has(session.tokens):
        cache.add(session.checkpoint())


def _stops(start: int, end: int, marks: Iterable[int]) -> list[int]:
    """Lengths at which to make a checkpoint, ascending, behind ``start``; the last is ``end``."""
    return sorted({*(mark for mark in marks if start < mark < end), *range(start + EVERY, end, EVERY), end} - {start})
