"""Attend over the rows that an indexer selects, the layer's own or that of the layer before, and keep the indexer's pools."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from hybridge.cache.block import Block, CacheSizes
from hybridge.cache.layers.attention import AttentionLayer, FullAttentionLayer
from hybridge.cache.layers.latent_attention import LatentAttentionLayer
from hybridge.cache.layers.short_conv import ShortConvLayer
from hybridge.cache.operations.kernels import Kernels, Visible
from hybridge.errors import UsageError


class IndexedLayer(AttentionLayer):
    """``source`` is the decoder layer whose indexer selects, before this layer attends (``provide``)."""

    kind: ClassVar[str] = "indexed_attention"

    def __init__(self, sizes: CacheSizes, kernels: Kernels, *, source: int, **shape: int) -> None:
        super().__init__(sizes, kernels, **shape)
        self.source = source

    def update(self, key: Tensor, value: Tensor, block: Block) -> tuple[Tensor, Tensor, Visible | None]:
        keys, values, _ = super().update(key, value, block)
        return keys, values, block.shared(("selected", self.source), _nothing)

    def visible_keys(self, key: Tensor, value: Tensor, block: Block, length: int | Tensor) -> tuple[Tensor, Tensor]:
        raise UsageError(
            "what an indexer selects does not reach transformers' own attention: run this model with "
            "hybridge.eager_session(model)."
        )

    def reset(self, when: Tensor) -> None:
        """Empty the rows: those that are not selected take part in products with a weight of 0, so they must be finite."""
        for name in self.positional:
            rows = self.get_buffer(name)
            rows.copy_(torch.where(when, torch.zeros_like(rows), rows))


class IndexedAttentionLayer(IndexedLayer, LatentAttentionLayer):
    """Over the latents (GLM-5.3-Flash)."""


class IndexedFullAttentionLayer(IndexedLayer, FullAttentionLayer):
    """Over keys and values of each head (Qwen4): ``source`` is the layer itself."""


def provide(selected: Visible, source: int, block: Block) -> None:
    """Let the layers with that source attend to what its indexer selected for the block."""
    block.shared(("selected", source), lambda: selected)


def _nothing() -> Visible:
    raise AssertionError("the indexer must run before the attention that it selects for")


class KeyPoolLayer(ShortConvLayer):
    """The indexer of a sparse attention over pools of keys (GLM-5.3-Flash): which pools of P positions a token attends to.

    A pool's key is the average of its P index keys, weighted in each channel by a softmax of their gates. A token scores the
    pools that are complete at its position, ``sum over heads of weight relu(scale query key)``, sees the best K of them, and
    always the positions after the last complete pool. Source: transformers 5.23 ``Glm5NextTextIndexer``; DeepSeek-AI,
    "DeepSeek-V3.2" (arXiv:2512.02556) for the indexer without pools.

    conv_state [B, P - 1, 2 D] has the index keys and gates of the last positions, from which the next pool is made, and keys
    [B, N, 1, D] one row for each pool. A pool's key is written with its last position, in a tentative block too: no token sees
    it from a shorter length, so a rollback needs nothing else. ``choices`` is K; ``finish``, a mixer's, turns pooled keys
    [B, M, 1, D] of pools that begin at positions int64 [M] into the keys that are scored.

    Axes: B batch (1 here), T tokens, H index heads, D index head dim, M pools that a block can touch, N pools, R rows of keys.
    """

    kind: ClassVar[str] = "key_pool"

    keys: Tensor
    finish: Callable[[Tensor, Tensor], Tensor]

    def __init__(self, sizes: CacheSizes, kernels: Kernels, *, head_dim: int, pool: int, choices: int) -> None:
        super().__init__(sizes, kernels, channels=2 * head_dim, conv_kernel=pool)
        self.head_dim, self.pool = head_dim, pool
        self.pools = sizes.rows // pool + 2  # a block may touch one pool more than its tokens fill
        self.choices = min(choices, self.pools)
        self.add_positional("keys", 1, head_dim, dtype=sizes.dtype, rows=self.pools)
        self.finish = as_it_is

    def select(self, query: Tensor, weight: Tensor, scale: float, block: Block) -> Visible:
        """Return what each token of the block, which ``pool_keys`` has taken in, attends to.

        query [B, T, H, D], weight [B, T, H] of each head's score.
        """
        scores = (query @ self.keys.permute(0, 2, 3, 1) * scale).relu()
        scores = (weight.unsqueeze(-2) @ scores).squeeze(-2)[0]  # [T, N]
        complete = torch.arange(self.pools) * self.pool + self.pool - 1 <= block.positions[:, None]
        best = torch.where(complete, scores, torch.finfo(scores.dtype).min).topk(self.choices, dim=-1).indices
        chosen = torch.zeros_like(scores).scatter(-1, best, 1.0)
        return self._visible(complete & (chosen > 0), block.positions[:, None])

    def _visible(self, chosen: Tensor, at: Tensor) -> Visible:
        """Return the rows of chosen pools, bool [T, N], and the tail of each token at position ``at``, int64 [T, 1]."""
        held = torch.arange(self.sizes.rows)
        of_pools = chosen.unsqueeze(-1).expand(-1, -1, self.pool).flatten(1)[:, : self.sizes.rows]
        tail = (held >= (at + 1) // self.pool * self.pool) & (held <= at)
        return Visible(held=held, mask=of_pools | tail)

    def pool_keys(self, key: Tensor, gate: Tensor, bias: Tensor, block: Block) -> None:
        """Take the block's index keys and gates in, [B, T, D] each; bias [P, D] is what a place in its pool adds to a gate."""
        window = self.extend_window(torch.cat([key, gate], dim=-1), block)
        first = block.start // self.pool
        touched = first + torch.arange((block.length + self.pool - 2) // self.pool + 1)
        pooled = self._pooled(window, touched, bias, block.start)
        # The other rows keep every bit: a pool without its last position is made anew with it.
        complete = (touched + 1) * self.pool <= block.start + block.count
        pooled = self.finish(pooled, touched * self.pool)
        kept = torch.where(complete[:, None, None], pooled, self.keys.index_select(1, touched))
        self.kernels.write_ring(self.keys, kept, touched)

    def _pooled(self, window: Tensor, touched: Tensor, bias: Tensor, start: Tensor) -> Tensor:
        """Return keys [B, M, 1, D] of the touched pools from window [B, P - 1 + T, 2 D], whose row P - 1 is ``start``."""
        members = touched[:, None] * self.pool + torch.arange(self.pool) - start + self.pool - 1
        members = members.clamp(max=window.shape[1] - 1).flatten()  # of a pool that is not complete, anything will do
        places = window.index_select(1, members).unflatten(1, (-1, self.pool))  # [B, M, P, 2 D]
        share = (places[..., self.head_dim :] + bias).softmax(2)
        pooled: Tensor = (share * places[..., : self.head_dim]).sum(2, keepdim=True)
        return pooled


def as_it_is(pooled: Tensor, first: Tensor) -> Tensor:
    """Score the average itself."""
    return pooled
