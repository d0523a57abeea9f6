"""Attention over the rows that an indexer selects, its own or that of the layer before."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from hybridge.cache.block import Block, CacheSizes
from hybridge.cache.errors import UsageError
from hybridge.cache.layers.full_attention import FullAttentionLayer
from hybridge.cache.layers.latent_attention import LatentAttentionLayer
from hybridge.cache.operations.kernels import Kernels, Visible


class IndexedAttentionLayer(LatentAttentionLayer):
    """``source`` is the decoder layer whose indexer selects, before this layer attends (``provide``)."""

    kind: ClassVar[str] = "indexed_attention"

    def __init__(self, sizes: CacheSizes, kernels: Kernels, *, rank: int, shared_dim: int, source: int) -> None:
        super().__init__(sizes, kernels, rank=rank, shared_dim=shared_dim)
        self.source = source

    def update(self, key: Tensor, value: Tensor, block: Block) -> tuple[Tensor, Tensor, Visible | None]:
        keys, values, _ = super().update(key, value, block)
        return keys, values, block.shared(("selected", self.source), _nothing)

    def seen(self, key: Tensor, value: Tensor, block: Block, length: int | Tensor) -> tuple[Tensor, Tensor]:
        raise _needs_a_session()

    def reset(self, when: Tensor) -> None:
        """Empty the rows: those that are not selected take part in products with a weight of 0, so they must be finite."""
        self.keys.copy_(torch.where(when, torch.zeros_like(self.keys), self.keys))


class IndexedFullAttentionLayer(FullAttentionLayer):
    """The same over keys and values of each head (Qwen4): ``source`` is the layer itself."""

    kind: ClassVar[str] = "indexed_attention"

    def __init__(self, sizes: CacheSizes, kernels: Kernels, *, kv_heads: int, head_dim: int, source: int) -> None:
        super().__init__(sizes, kernels, kv_heads=kv_heads, head_dim=head_dim)
        self.source = source

    def update(self, key: Tensor, value: Tensor, block: Block) -> tuple[Tensor, Tensor, Visible | None]:
        keys, values, _ = super().update(key, value, block)
        return keys, values, block.shared(("selected", self.source), _nothing)

    def seen(self, key: Tensor, value: Tensor, block: Block, length: int | Tensor) -> tuple[Tensor, Tensor]:
        raise _needs_a_session()

    def reset(self, when: Tensor) -> None:
        """Empty the rows, as above: what is not selected must be finite."""
        for rows in (self.keys, self.values):
            rows.copy_(torch.where(when, torch.zeros_like(rows), rows))


def _needs_a_session() -> UsageError:
    return UsageError(
        "what an indexer selects does not reach transformers' own attention: run this model with "
        "hybridge.export.reference.eager.eager_session(model)."
    )


def provide(selected: Visible, source: int, block: Block) -> None:
    """Let the layers with that source attend to what its indexer selected for the block."""
    block.shared(("selected", source), lambda: selected)


def _nothing() -> Visible:
    raise AssertionError("the indexer must run before the attention that it selects for")
