"""Define a layer of the cache: a few fixed buffers and six operations on them; layers made of several, and one without state.

A layer never asks what kind another one is, and the container (``HybridCache``) never asks at all: it loops.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from hybridge.cache.block import CacheSizes
from hybridge.cache.operations.kernels import Kernels
from hybridge.errors import CheckpointError

Staged = TypeVar("Staged", bound=NamedTuple)


def lazy_zeros(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return zeros of which a page takes memory once it is written: there are rows for a whole context."""
    count = math.prod(shape)
    if torch.get_default_device().type != "cpu" or not count or not hasattr(mmap, "MAP_PRIVATE"):  # not on Windows
        return torch.zeros(shape, dtype=dtype)
    try:
        pages = mmap.mmap(-1, count * dtype.itemsize, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError:
        return torch.zeros(shape, dtype=dtype)  # whose error says how much there is no memory for
    return torch.frombuffer(pages, dtype=dtype).view(*shape)


class CacheLayer(nn.Module):
    """State of one token mixer.

    Subclasses name their buffers in three groups: **committed** (what the accepted tokens left behind, bounded and copied by a
    snapshot), **positional** (rows addressed by position, for which a snapshot needs only the length) and **staged** (inputs of
    a tentative block). Each committed buffer has a twin ``<name>_slots`` [B, N, first dim, the rest] for the snapshot slots:
    four dimensions with the slots as the second, which is what a runtime's row-writing operator takes.
    """

    kind: ClassVar[str]

    @property
    def rounded_to(self) -> torch.dtype | None:
        """Return float16 or int8 if the layer rounds keys and values to it, None if it keeps them exact or has none."""
        return None

    def __init__(self, sizes: CacheSizes, kernels: Kernels) -> None:
        super().__init__()
        self.sizes = sizes
        self.kernels = kernels
        self.committed: list[str] = []
        self.positional: list[str] = []
        self.staged: list[str] = []

    def add_committed(self, name: str, *shape: int, dtype: torch.dtype = torch.float32) -> None:
        """Add a bounded state [B, *shape], with room for it in every snapshot slot."""
        self._check(name, shape)
        self.committed.append(name)
        self.register_buffer(name, torch.zeros(self.sizes.batch_size, *shape, dtype=dtype))
        if self.sizes.snapshot_slots:
            slots = (self.sizes.batch_size, self.sizes.snapshot_slots, shape[0], math.prod(shape[1:]))
            self.register_buffer(f"{name}_slots", torch.zeros(slots, dtype=dtype))

    def add_positional(self, name: str, *shape: int, dtype: torch.dtype = torch.float32, rows: int | None = None) -> None:
        """Add rows by position [B, R, *shape]; R is ``sizes.rows`` if ``rows`` is left out, as one row serves one position."""
        self._check(name, shape)
        self.positional.append(name)
        self.register_buffer(name, lazy_zeros((self.sizes.batch_size, rows or self.sizes.rows, *shape), dtype))

    def add_staged(self, name: str, *shape: int, dtype: torch.dtype = torch.float32) -> None:
        """Add a buffer [B, S, *shape] for what the tokens of a tentative block leave for a commit."""
        self._check(name, shape)
        self.staged.append(name)
        self.register_buffer(name, torch.zeros(self.sizes.batch_size, self.sizes.verify_len, *shape, dtype=dtype))

    def _check(self, name: str, shape: Sequence[object]) -> None:
        """Raise CheckpointError for sizes that no buffer can have: they come from a config.json."""
        if not all(isinstance(size, int) and size >= 0 for size in shape):
            raise CheckpointError(
                f"config.json gives sizes that no layer can have: {list(shape)} for the {name} of {self.kind}. "
                "Take the config.json that came with the checkpoint."
            )

    def staged_as(self, kind: type[Staged]) -> Staged:
        """Return the staged buffers as a named tuple ``kind``, whose field ``key`` is the buffer ``staged_key``."""
        return kind._make(self.get_buffer(f"staged_{name}") for name in kind._fields)

    def part(self, name: str) -> CacheLayer:
        """Return the part of that name; a layer that has no parts is its own only one."""
        return self

    def connect(self, layers: Sequence[CacheLayer]) -> None:
        """Look up other layers of the model; called once all of them are there."""

    def leaves(self) -> list[CacheLayer]:
        """Return the layers without parts that this one consists of, in order."""
        return [self]

    def commit(self, count: Tensor) -> None:
        """Accept the first ``count`` (int64 [1]) staged tokens; 0 leaves every committed bit as it is."""

    def reset(self, when: Tensor) -> None:
        """Empty the state where ``when`` (bool [1]) holds; whatever the memory held before, NaN included."""
        for name in self.committed:
            self.kernels.clear(self.get_buffer(name), when)

    def write_slot(self, slot: Tensor, when: Tensor) -> None:
        """Keep the committed state in ``slot`` (int64 [1], in range) where ``when`` holds."""
        for name in self.committed:
            self.kernels.save_slot(self.get_buffer(name), self.get_buffer(f"{name}_slots"), slot, when)

    def read_slot(self, slot: Tensor, when: Tensor) -> None:
        """Bring back what ``slot`` (int64 [1], in range) holds where ``when`` holds."""
        for name in self.committed:
            self.kernels.load_slot(self.get_buffer(f"{name}_slots"), self.get_buffer(name), slot, when)

    def bytes_by_use(self) -> Mapping[str, int]:
        """Return the bytes of the committed and positional state, of what a rollback adds, and of the snapshot slots."""
        size = {name: buffer.numel() * buffer.element_size() for name, buffer in self.named_buffers()}
        state = sum(size[name] for name in (*self.committed, *self.positional))
        staged = sum(size[name] for name in self.staged)
        return {"state": state, "rollback": staged, "slots": sum(size.values()) - state - staged}


class CompositeLayer(CacheLayer):
    """A decoder layer with more than one state, say attention beside a state space: its named parts, in order."""

    def __init__(self, sizes: CacheSizes, kernels: Kernels, parts: Mapping[str, CacheLayer]) -> None:
        super().__init__(sizes, kernels)
        self.parts = nn.ModuleDict(dict(parts))

    @property
    def kind(self) -> str:  # type: ignore[override]  # of an instance here, because it names the parts
        return " + ".join(part.kind for part in self.leaves())

    def part(self, name: str) -> CacheLayer:
        return self.parts[name]  # type: ignore[return-value]  # a ModuleDict forgets what it holds

    def leaves(self) -> list[CacheLayer]:
        return [leaf for part in self.parts.values() for leaf in part.leaves()]  # type: ignore[operator]

    def commit(self, count: Tensor) -> None:
        for part in self.leaves():
            part.commit(count)

    def reset(self, when: Tensor) -> None:
        for part in self.leaves():
            part.reset(when)

    def write_slot(self, slot: Tensor, when: Tensor) -> None:
        for part in self.leaves():
            part.write_slot(slot, when)

    def read_slot(self, slot: Tensor, when: Tensor) -> None:
        for part in self.leaves():
            part.read_slot(slot, when)

    def bytes_by_use(self) -> Mapping[str, int]:
        uses = [part.bytes_by_use() for part in self.leaves()]
        return {use: sum(each[use] for each in uses) for use in ("state", "rollback", "slots")}


class StatelessLayer(CacheLayer):
    """A decoder layer that keeps nothing, say a block of experts only."""

    kind: ClassVar[str] = "stateless"
