"""The state of lightning attention (MiniMax): a matrix for each head, fading at a fixed rate; no convolution."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from torch import Tensor

from hybridge.cache.block import Block, CacheSizes
from hybridge.cache.layers.layer import CacheLayer
from hybridge.cache.operations.kernels import Kernels
from hybridge.cache.recurrences.state_space import LinearAttention, LinearStaged


class LightningAttentionLayer(CacheLayer):
    """recurrent_state [B, H, V, K] float32, of H heads with K = V = D, the head dim.

    ``mix(mixed, block=...)`` takes query, key and value of each head in turn, [B, T, 3 H D], and returns [B, T, H D].
    ``weights`` are the mixer's.
    """

    kind: ClassVar[str] = "lightning_attention"

    recurrent_state: Tensor
    weights: Callable[[], LinearAttention]

    def __init__(self, sizes: CacheSizes, kernels: Kernels, *, heads: int, head_dim: int) -> None:
        super().__init__(sizes, kernels)
        self.add_committed("recurrent_state", heads, head_dim, head_dim)
        self.add_staged("staged_mixed", 3 * heads * head_dim, dtype=sizes.dtype)
        self.add_staged("staged_steps", heads)  # all 1, but for what a commit does not accept

    def mix(self, mixed: Tensor, *, block: Block) -> Tensor:
        return self.kernels.linear_attention(
            mixed, None, self.weights(), self.recurrent_state, self.staged_as(LinearStaged), block
        )

    def commit(self, count: Tensor) -> None:
        self.kernels.commit_linear_attention(self.weights(), self.recurrent_state, self.staged_as(LinearStaged), count)
