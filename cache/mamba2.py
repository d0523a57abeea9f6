"""The state of a Mamba-2 mixer: a conv window and a matrix for each head."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from hybridge.cache.block import CacheSizes
from hybridge.cache.conv_window import Convolution, unbound, window_after
from hybridge.cache.decayed_linear_attention import decayed_linear_attention
from hybridge.cache.kernels import Kernels
from hybridge.cache.recurrent import RecurrentLayer, States


class Mamba2Layer(RecurrentLayer):
    """conv_state [B, C, W] and recurrent_state [B, H, P, N], the latter float32.

    C = H P + 2 G N channels (x, B, C), W = conv kernel - 1, H heads of dim P, G groups with a state of N each.

    ``mix(conv_input, dt, block=...)`` takes [B, C, T] and [B, H, T], dt after softplus and clamp, and returns [B, T, H P].
    ``rate`` [H] (A, negative) and ``skip`` [H] (D) are the mixer's, in float32.
    """

    kind: ClassVar[str] = "mamba2"

    conv_state: Tensor
    recurrent_state: Tensor
    rate: Callable[[], Tensor]
    skip: Callable[[], Tensor]

    def __init__(
        self, sizes: CacheSizes, kernels: Kernels, *, heads: int, head_dim: int, state_dim: int, groups: int, conv_kernel: int
    ) -> None:
        super().__init__(sizes, kernels)
        self.heads, self.head_dim, self.groups = heads, head_dim, groups
        channels = heads * head_dim + 2 * groups * state_dim
        self.add_committed("conv_state", channels, conv_kernel - 1, dtype=sizes.dtype)
        self.add_committed("recurrent_state", heads, head_dim, state_dim)
        self.add_staged("staged_conv", channels, sizes.verify_len, dtype=sizes.dtype, gate=False)
        self.add_staged("staged_dt", heads, sizes.verify_len)
        self.convolve: Convolution = unbound

    def advance(self, inputs: tuple[Tensor, ...], count: Tensor) -> tuple[Tensor, States]:
        conv_input, dt = inputs
        window = torch.cat([self.conv_state, conv_input], dim=-1)
        x, key, query = self._heads(self.convolve(window).float())
        log_decay = dt * self.rate().unsqueeze(-1)
        out, state = decayed_linear_attention(query, key, x * dt.unsqueeze(2), log_decay, self.recurrent_state)
        out = (out + x * self.skip()[:, None, None]).flatten(1, 2).transpose(1, 2)
        conv_state = window_after(window, count, self.conv_state.shape[-1])
        return out, {"recurrent_state": state, "conv_state": conv_state}

    def _heads(self, mixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What the conv put out [B, C, T] as x [B, H, P, T], and key and query [B, H, N, T]."""
        inner = self.heads * self.head_dim
        size = (mixed.shape[1] - inner) // 2
        key, query = mixed[:, inner : inner + size], mixed[:, inner + size :]
        return mixed[:, :inner].unflatten(1, (self.heads, -1)), self._for_heads(key), self._for_heads(query)

    def _for_heads(self, x: Tensor) -> Tensor:
        """Each group serves H / G heads that follow each other: [B, G N, T] to [B, H, N, T]."""
        each = self.heads // self.groups
        grouped: Tensor = x.unflatten(1, (self.groups, -1))
        return grouped.unsqueeze(2).expand(-1, -1, each, -1, -1).flatten(1, 2) if each > 1 else grouped
