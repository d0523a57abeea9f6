"""Multi-head latent attention: one compressed row for each position instead of a key and a value for each head.

A head's key is ``A c`` beside a part r that all heads share, its value ``B c``, for the position's latent c. Because
``q^T A c = (A^T q)^T c`` and ``sum(w B c) = B sum(w c)``, the projections move from the keys and values to the query and the
output, and attention runs over the rows [c, r] alone, which all heads share and which are keys and values at once.

Axes: B batch, T tokens, R rows, H heads, C rank of the latent, P shared dims, N a head's own key dims, V value dim.

Against keys and values of every head this is ``(C + P) / (H (N + P + V))`` of the memory (1/18 for Kimi Linear) and of what a
decoded token reads, at ``2 (C + P) / (N + P + V)`` of the multiplications inside attention (3.6 there).

Source: DeepSeek-AI, "DeepSeek-V2" (arXiv:2405.04434), section 2.1; transformers 5.23 ``KimiLinearAttention``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from hybridge.cache.block import Block, CacheSizes
from hybridge.cache.layers.attention import AttentionLayer
from hybridge.cache.operations.kernels import Kernels, Scoring, Visible

Projection = Callable[[Tensor], Tensor]


def unbound(x: Tensor) -> Tensor:
    """Stand for a projection until an adapted model sets its own."""
    raise AssertionError("set the attention's projections on the cache layer before running a block")


class LatentAttentionLayer(AttentionLayer):
    """keys [B, R, 1, C + P], the latent of each position and the part of its keys that all heads share; R = ``sizes.rows``.

    For key and value it takes the latent [B, T, 1, C] and the shared part [B, T, 1, P], as transformers' caches do. absorb
    brings a query [B, T, H, N + P] into the latent space, [B, T, H, C + P]; expand brings what was attended, [B, T, H, C], out
    of it, [B, T, H, V].
    """

    kind: ClassVar[str] = "latent_attention"

    def __init__(self, sizes: CacheSizes, kernels: Kernels, *, rank: int, shared_dim: int) -> None:
        super().__init__(sizes, kernels)
        self.rank, self.shared_dim = rank, shared_dim
        self.add_positional("keys", 1, rank + shared_dim, dtype=sizes.dtype)
        self.absorb: Projection = unbound
        self.expand: Projection = unbound

    def attend(self, query: Tensor, key: Tensor, value: Tensor, block: Block, scoring: Scoring) -> Tensor:
        attended = super().attend(self.absorb(query), key, value, block, scoring)
        return self.expand(attended[..., : self.rank])

    def update(self, key: Tensor, value: Tensor, block: Block) -> tuple[Tensor, Tensor, Visible | None]:
        self.kernels.write_rows(self.keys, torch.cat([key, value], dim=-1) if self.shared_dim else key, block)
        return self.keys, self.keys, None

    def visible_keys(self, key: Tensor, value: Tensor, block: Block, length: int | Tensor) -> tuple[Tensor, Tensor]:
        self.update(key, value, block)
        rows = self.keys[:, : self.visible_sizes(block.length, length)[0]]
        return rows[..., : self.rank], rows[..., self.rank :]
