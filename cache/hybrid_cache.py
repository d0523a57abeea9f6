"""Keep the state of a whole model: a length, snapshot slots and a list of layers, over which every operation loops."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from hybridge.arguments import checked
from hybridge.cache import DEFAULT_MAX_SEQ_LEN
from hybridge.cache.block import Block, CacheSizes
from hybridge.cache.families import Config, build_layers, config_dtype, text_config
from hybridge.cache.layers.layer import CacheLayer
from hybridge.cache.operations.kernels import CoreKernels, Kernels
from hybridge.cache.transformers_api import TAKES_CACHE_PARAMS, TransformersCacheApi
from hybridge.errors import SnapshotError
from hybridge.limits import check_sizes

Layer = TypeVar("Layer", bound=CacheLayer)


@dataclass(frozen=True)
class Snapshot:
    """A copy of a cache's committed state, made by ``HybridCache.snapshot``."""

    layout: tuple[tuple[str, tuple[int, ...]], ...]
    buffers: dict[str, Tensor]


class HybridCache(TransformersCacheApi, nn.Module):
    """Static state of a whole model; every length is a tensor, so the same code runs eager and exported.

    Buffers of its own: length int64 [1], committed tokens; staged int64 [1], tokens of a verified block that waits for
    ``commit``, 0 without one; slot_length int64 [N ≥ 1], the length that each snapshot slot keeps, -1 if it is invalid;
    operations int64 [1], block operations that were not refused, which tells a state from an equal one before it.

    The block operations (``extend``, ``speculate``, ``close``, ``commit``, ``write_slot``, ``read_slot``, ``clear``) never
    branch on values: what cannot be done leaves the state as it was by arithmetic and answers -1.
    """

    length: Tensor
    staged: Tensor
    slot_length: Tensor
    operations: Tensor
    block: Block  # the block that is being run, for mixers deep inside a model to find

    def __init__(self, layers: Iterable[CacheLayer], sizes: CacheSizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.layers = nn.ModuleList(layers)
        for layer in self.cache_layers():
            layer.connect(self.cache_layers())
        self.register_buffer("length", torch.zeros(1, dtype=torch.long))
        self.register_buffer("staged", torch.zeros(1, dtype=torch.long))
        self.register_buffer("slot_length", torch.full((max(1, sizes.snapshot_slots),), -1, dtype=torch.long))
        self.register_buffer("operations", torch.zeros(1, dtype=torch.long))

    @classmethod
    @checked
    def from_config(
        cls,
        config: Config,
        *,
        max_seq_len: int | None = None,
        prefill_chunk: int = 64,
        verify_len: int = 8,
        snapshot_slots: int = 0,
        batch_size: int = 1,
        dtype: torch.dtype | None = None,
        kv_dtype: torch.dtype | None = None,
        kernels: Kernels | None = None,
    ) -> HybridCache:
        """Return the cache that ``config`` (a model's, or its text model's) asks for.

        max_seq_len is in tokens; left out it is 2048 with a warning, never ``config.max_position_embeddings``, which is ten
        million for some models. dtype, of keys, values and conv windows, is the config's by default;
        kv_dtype, float16 or int8, is what those of full attention are rounded to. A model that ignores ``past_key_values`` and
        takes ``cache_params`` comes with a warning.
        Raises UsageError for a size below 1 and UnsupportedModelError for an unknown layer.
        """
        if max_seq_len is None:
            max_seq_len = DEFAULT_MAX_SEQ_LEN
            warnings.warn(f"max_seq_len was not given: the cache holds {max_seq_len} tokens", stacklevel=2)
        if (name := text_config(config).model_type) in TAKES_CACHE_PARAMS:
            warnings.warn(f"transformers' {name} ignores past_key_values; pass this cache as cache_params", stacklevel=2)
        sizes = CacheSizes(
            max_seq_len=max_seq_len,
            prefill_chunk=prefill_chunk,
            verify_len=verify_len,
            snapshot_slots=snapshot_slots,
            batch_size=batch_size,
            dtype=dtype or config_dtype(config),
            kv_dtype=kv_dtype,
        )
        return cls.of_sizes(config, sizes, kernels or CoreKernels())

    @classmethod
    def of_sizes(cls, config: Config, sizes: CacheSizes, kernels: Kernels) -> HybridCache:
        """Return the cache of these sizes that ``config`` asks for. Raises what ``from_config`` does."""
        check_sizes(sizes)
        return cls(build_layers(config, sizes, kernels), sizes)

    def cache_layers(self) -> list[CacheLayer]:
        """Return the layers in the model's order."""
        return list(self.layers)  # type: ignore[arg-type]  # a ModuleList forgets what it holds

    def leaves(self) -> list[CacheLayer]:
        """Return the parts of all layers, in the model's order."""
        return [part for layer in self.cache_layers() for part in layer.leaves()]

    def part(self, index: int, kind: type[Layer], name: str = "") -> Layer:
        """Return the layer of that kind at ``index``; ``name`` selects one if the decoder layer has several."""
        part = self.cache_layers()[index].part(name)
        assert isinstance(part, kind)
        return part

    # Blocks of tokens

    def extend(self, tokens: int, count: Tensor) -> Block:
        """Return a block of which the first ``count`` (int64 [1], 1..tokens) tokens are committed when it is closed.

        A count that does not fit becomes 0, and the block's rows then go after the last position, where nothing is kept.
        """
        fits = (count >= 1) & (count <= tokens) & (self.length + count <= self.sizes.max_seq_len)
        start = torch.where(fits, self.length, self.sizes.max_seq_len)
        return Block(start=start, count=torch.where(fits, count, 0), length=tokens)

    def speculate(self, tokens: int) -> Block:
        """Return a block that is only staged; ``commit`` accepts the first tokens of it, or none."""
        return Block(start=self.length + 0, count=torch.full_like(self.length, tokens), length=tokens, tentative=True)

    def close(self, block: Block) -> None:
        """Account for a block once every layer has seen it."""
        self.forget_slots((self.slot_length > self.length) & (block.count > 0))
        if block.tentative:
            self.staged.fill_(block.length)
        else:
            self.staged.copy_(torch.where(block.count > 0, 0, self.staged))
            self.length.add_(block.count)
        self.count(block.count > 0)

    def count(self, done: Tensor) -> None:
        """Count an operation that is otherwise complete where ``done`` (bool [1]) holds."""
        self.operations.add_(done.to(torch.long))

    def forget_slots(self, which: Tensor) -> None:
        """Make the slots invalid for which bool [N] holds: rows below their lengths are being overwritten."""
        self.slot_length.copy_(torch.where(which, -1, self.slot_length))

    def commit(self, count: Tensor) -> Tensor:
        """Accept the first ``count`` (int64 [1]) staged tokens. Returns the new length [1], or -1 with nothing changed."""
        possible = (self.staged > 0) & (count >= 0) & (count <= self.staged)
        possible = possible & (self.length + count <= self.sizes.max_seq_len)
        accepted = torch.where(possible, count, 0)
        for layer in self.cache_layers():
            layer.commit(accepted)
        self.length.add_(accepted)
        self.staged.copy_(torch.where(possible, 0, self.staged))
        self.count(possible)
        return torch.where(possible, self.length, -1)

    # Snapshot slots

    def write_slot(self, slot: Tensor) -> Tensor:
        """Keep the committed state in ``slot`` (int64 [1]). Returns the length [1], or -1 with nothing changed."""
        exists, slot = self._existing(slot)
        for layer in self.cache_layers():
            layer.write_slot(slot, exists)
        mine = exists & (torch.arange(self.slot_length.shape[0]) == slot)
        self.slot_length.copy_(torch.where(mine, self.length, self.slot_length))
        return self._moved(exists, self.length)

    def read_slot(self, slot: Tensor) -> Tensor:
        """Bring back what ``slot`` keeps. Returns the length [1], or -1 with nothing changed if it is invalid."""
        exists, slot = self._existing(slot)
        kept = self.slot_length.index_select(0, slot)
        valid = exists & (kept >= 0)
        for layer in self.cache_layers():
            layer.read_slot(slot, valid)
        return self._moved(valid, kept)

    def clear(self, when: Tensor) -> Tensor:
        """Empty state and invalid slots where ``when`` (bool [1]) holds. Returns the length [1]."""
        for layer in self.cache_layers():
            layer.reset(when)
        self.slot_length.copy_(torch.where(when, -1, self.slot_length))
        self.staged.copy_(torch.where(when, 0, self.staged))
        self.length.copy_(torch.where(when, 0, self.length))
        self.count(when)
        return self.length.clone()

    def _existing(self, slot: Tensor) -> tuple[Tensor, Tensor]:
        last = self.sizes.snapshot_slots - 1
        return (slot >= 0) & (slot <= last), slot.clamp(0, last)

    def _moved(self, done: Tensor, length: Tensor) -> Tensor:
        """Drop the staged block and take the new length where ``done``; return the answer of a slot operation."""
        self.staged.copy_(torch.where(done, 0, self.staged))
        self.length.copy_(torch.where(done, length, self.length))
        self.count(done)
        return torch.where(done, self.length, -1)

    # Eager use

    def snapshot(self) -> Snapshot:
        """Return a copy of the committed state, valid whatever comes after; for eager use, where memory is cheap."""
        return Snapshot(self.layout(), {name: tensor.clone() for name, tensor in self.named_buffers()})

    @checked
    def restore(self, snapshot: Snapshot) -> None:
        """Restore a snapshot of this cache or of one with the same layout. Buffers keep their addresses.

        Raises SnapshotError for a snapshot of another layout.
        """
        if snapshot.layout != self.layout():
            raise SnapshotError(
                f"this snapshot is of a cache with {len(snapshot.layout)} buffers laid out otherwise; "
                "restore it into a cache built with the same config and sizes."
            )
        for name, tensor in self.named_buffers():
            tensor.copy_(snapshot.buffers[name])

    def reset(self) -> None:
        """Empty the cache in place."""
        self.clear(torch.ones(1, dtype=torch.bool))

    def bounded_buffers(self) -> dict[str, Tensor]:
        """Return by name the length and what is not kept by position: with copies of them a longer text can be cut back."""
        kept = {id(self.length), *(id(part.get_buffer(name)) for part in self.leaves() for name in part.committed)}
        return {name: buffer for name, buffer in self.named_buffers() if id(buffer) in kept}

    def positional_names(self) -> set[str]:
        """Return the names of the buffers with a row for each position."""
        rows = {id(part.get_buffer(name)) for part in self.leaves() for name in part.positional}
        return {name for name, buffer in self.named_buffers() if id(buffer) in rows}

    def state_bytes(self) -> int:
        """Return the bytes of all buffers, snapshot slots and staged blocks included."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.buffers())

    def layout(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Return name and shape of every buffer."""
        return tuple((name, tuple(tensor.shape)) for name, tensor in self.named_buffers())
