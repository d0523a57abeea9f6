"""Checkpoints: states in memory that sessions continue from, and a cache of them by their texts."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import byref, c_size_t, c_uint64, create_string_buffer

from hybridge.arguments import checked
from hybridge.errors import UsageError
from hybridge.runtime.artifact.options import DEFAULT_BYTES
from hybridge.runtime.binding.interface import CachedStruct, CacheHandle, CheckpointHandle, KeptStruct, OnUse
from hybridge.runtime.binding.library import run
from hybridge.runtime.binding.model import Model, Owned
from hybridge.runtime.binding.sampling import Tokens, core_ids, token_ids


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
