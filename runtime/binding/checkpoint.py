"""Checkpoints: states in memory that sessions continue from, and a cache of them by their texts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from ctypes import byref, c_size_t, c_uint64, create_string_buffer
from typing import TYPE_CHECKING

from hybridge.arguments import checked
from hybridge.errors import UsageError
from hybridge.runtime.artifact.options import DEFAULT_BYTES
from hybridge.runtime.binding.interface import CachedStruct, CacheHandle, CheckpointHandle, KeptStruct, OnUse
from hybridge.runtime.binding.library import run
from hybridge.runtime.binding.model import Model, Owned
from hybridge.runtime.binding.pictures import behind_picture
from hybridge.runtime.binding.sampling import Tokens, core_ids, token_ids

if TYPE_CHECKING:
    from hybridge.runtime.binding.drafters import Drafter
    from hybridge.runtime.binding.session import Session

EVERY = 512
"""Tokens of a long text from one checkpoint to the next."""


class Checkpoint(Owned):
    """A state in memory, of ``Session.checkpoint``; any session over the same artifact can continue from it until it is closed.

    It has no more than what its text added to the session's checkpoint before. length: tokens; nbytes: those of its own;
    shared_nbytes: those of rows that it has in common with checkpoints of shorter texts.
    """

    def __init__(self, handle: CheckpointHandle) -> None:
        super().__init__(handle, "checkpoint_close")
        kept = KeptStruct()
        run("checkpoint_info", handle, byref(kept))
        self.length: int = kept.length
        self.nbytes: int = kept.bytes
        self.shared_nbytes: int = kept.shared_bytes

    def parts(self) -> list[int]:
        """Return numbers of its parts: of its text's segments, which others share, shortest text first, then of the rest."""
        count = c_size_t()
        run("checkpoint_parts", self.handle, None, 0, byref(count))
        ids = (c_uint64 * count.value)()
        run("checkpoint_parts", self.handle, ids, len(ids), byref(count))
        return list(ids)

    @checked
    def part(self, place: int) -> bytes:
        """Return the bytes of a part, for ``Session.read_checkpoint`` of any process."""
        size = c_size_t()
        run("checkpoint_part", self.handle, place, None, 0, byref(size))
        data = create_string_buffer(size.value)
        run("checkpoint_part", self.handle, place, data, len(data), byref(size))
        return data.raw


class PrefixCache(Owned):
    """Checkpoints by their texts, of at most ``budget`` bytes together; what was used least recently goes first.

    Rows by position that longer texts need stay as long as one of these does, and are counted once.
    """

    @checked
    def __init__(self, model: Model, budget: int = DEFAULT_BYTES, used: Callable[[Checkpoint], None] | None = None) -> None:
        """budget: bytes; 0 keeps nothing. used: called with each checkpoint that is kept or found. Raises UsageError."""
        if budget < 0:
            raise UsageError(f"a cache of {budget} bytes cannot be; give 0 or more.")
        self.budget = budget
        handle = CacheHandle()
        run("cache_open", model.handle, min(budget, 2**63 - 1), byref(handle))
        super().__init__(handle, "cache_close")
        self.watch(used)

    def __len__(self) -> int:
        return int(self._sizes().checkpoints)

    @property
    def nbytes(self) -> int:
        """Return the bytes of everything that is kept."""
        return int(self._sizes().bytes)

    @checked
    def watch(self, used: Callable[[Checkpoint], None] | None) -> None:
        """Call ``used`` with each checkpoint that is kept or found from now on, in the middle of that call."""
        self._on_use = OnUse() if used is None else OnUse(lambda handle, _: used(Checkpoint(handle)))
        run("cache_watch", self.handle, self._on_use, None)

    def find(self, tokens: Tokens) -> Checkpoint | None:
        """Return the checkpoint of the longest beginning of ``tokens``, all of them included; None without one."""
        ids, handle = core_ids(tokens), CheckpointHandle()
        run("cache_find", self.handle, ids, len(ids), byref(handle))
        return Checkpoint(handle) if handle.id else None

    def has(self, tokens: Tokens) -> bool:
        """Return whether there is a checkpoint of exactly this text, which then counts as used."""
        ids = token_ids(tokens)
        found = self.find(ids)
        return found is not None and found.length == len(ids)

    @checked
    def add(self, checkpoint: Checkpoint) -> None:
        """Keep a checkpoint in the place of another one of its text, as far as the budget goes."""
        run("cache_add", self.handle, checkpoint.handle)

    def clear(self) -> None:
        """Keep nothing any more."""
        run("cache_clear", self.handle)

    def _sizes(self) -> CachedStruct:
        sizes = CachedStruct()
        run("cache_info", self.handle, byref(sizes))
        return sizes


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
        resume_prefix(session, self.tokens, cache)
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
                keep_checkpoint(session, self.cache)
            yield
        keep_checkpoint(session, self.cache)


def bring_to(
    session: Session, tokens: Sequence[int], cache: PrefixCache, marks: Collection[int] = (), *, drafter: Drafter | None = None
) -> int:
    """Bring the session to the text ``tokens`` (``PromptPrefill``); return the number of tokens that were not read."""
    reading = PromptPrefill(session, tokens, cache, marks, drafter=drafter)
    for _ in reading.steps():
        pass
    return reading.cached_tokens


def resume_prefix(session: Session, tokens: list[int], cache: PrefixCache) -> None:
    """Bring the session to the longest beginning of ``tokens`` that its state or a checkpoint has."""
    now, found = session.tokens, cache.find(tokens)
    known = len(now) if tokens[: len(now)] == now else -1
    if found is not None and found.length > known:
        session.resume(found)
    elif known < 0:
        session.reset()


def keep_checkpoint(session: Session, cache: PrefixCache) -> None:
    """Add a checkpoint of the session's text to the cache, unless that has one or the text is empty."""
    if cache.budget and session.length and not cache.has(session.tokens):
        cache.add(session.checkpoint())
