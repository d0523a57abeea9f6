"""The state of lightning attention (MiniMax): a matrix for each head, fading at a fixed rate; no convolution."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from hybridge.cache.block import CacheSizes
from hybridge.cache.decayed_linear_attention import decayed_linear_attention
from hybridge.cache.kernels import Kernels
from hybridge.cache.recurrent import RecurrentLayer, States


class LightningAttentionLayer(RecurrentLayer):
    """recurrent_state [B, H, V, K] float32, of H heads with K = V = D, the head dim.

    ``mix(key, value, log_decay, query, block=...)`` takes [B, H, D, T], but [B, H, T] for the log decay, and returns
    [B, T, H D].
    """

    kind: ClassVar[str] = "lightning_attention"

    recurrent_state: Tensor

    def __init__(self, sizes: CacheSizes, kernels: Kernels, *, heads: int, head_dim: int) -> None:
        super().__init__(sizes, kernels)
        self.add_committed("recurrent_state", heads, head_dim, head_dim)
        self.add_staged("staged_key", heads, head_dim, sizes.verify_len, dtype=sizes.dtype, gate=False)
        self.add_staged("staged_value", heads, head_dim, sizes.verify_len, dtype=sizes.dtype)
        self.add_staged("staged_log_decay", heads, sizes.verify_len)

    def advance(self, inputs: tuple[Tensor, ...], count: Tensor) -> tuple[Tensor, States]:
        key, value, log_decay, *reading = inputs
        query = reading[0] if reading else key
        out, state = decayed_linear_attention(query.float(), key.float(), value.float(), log_decay, self.recurrent_state)
        return out.flatten(1, 2).transpose(1, 2), {"recurrent_state": state}
