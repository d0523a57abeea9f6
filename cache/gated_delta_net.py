"""Linear recurrent layer with a conv window: the state of a gated delta net (Qwen3-Next, Qwen3.5).

``verify`` stages the block's small inputs (what goes into the conv, and the gates) and leaves the state alone; ``commit``
replays the recurrence for the accepted ones. No second forward, no copy of the state for each token.
"""

from __future__ import annotations

from typing import ClassVar, Protocol

import torch
from torch import Tensor

from hybridge.cache.block import Block, CacheSizes
from hybridge.cache.conv_window import window_after
from hybridge.cache.gated_delta_rule import identity_after
from hybridge.cache.kernels import Kernels
from hybridge.cache.layer import CacheLayer


class Convolution(Protocol):
    """Causal depthwise convolution with its activation: window [B, C, W + T] to [B, C, T]."""

    def __call__(self, window: Tensor, /) -> Tensor: ...


class GatedDeltaNetLayer(CacheLayer):
    """conv_state [B, C, W] and recurrent_state [B, Hv, K, V], the latter float32.

    C = 2 Hk K + Hv V channels (query, key, value), W = conv kernel - 1, Hk key heads, Hv value heads.
    """

    kind: ClassVar[str] = "gated_delta_net"

    conv_state: Tensor
    recurrent_state: Tensor
    staged_conv: Tensor
    staged_log_decay: Tensor
    staged_beta: Tensor

    def __init__(
        self,
        sizes: CacheSizes,
        kernels: Kernels,
        *,
        key_heads: int,
        value_heads: int,
        key_dim: int,
        value_dim: int,
        conv_kernel: int,
    ) -> None:
        super().__init__(sizes, kernels)
        self.key_heads, self.value_heads = key_heads, value_heads
        self.key_dim, self.value_dim = key_dim, value_dim
        channels = 2 * key_heads * key_dim + value_heads * value_dim
        self.add_committed("conv_state", channels, conv_kernel - 1, dtype=sizes.dtype)
        self.add_committed("recurrent_state", value_heads, key_dim, value_dim)
        self.add_staged("staged_conv", channels, sizes.verify_len, dtype=sizes.dtype)
        self.add_staged("staged_log_decay", value_heads, sizes.verify_len)
        self.add_staged("staged_beta", value_heads, sizes.verify_len)
        self._convolve: Convolution | None = None

    def bind(self, convolve: Convolution) -> None:
        """Tell the layer its mixer's convolution, which ``commit`` needs to replay staged inputs."""
        self._convolve = convolve

    def mix(self, conv_input: Tensor, log_decay: Tensor, beta: Tensor, block: Block) -> Tensor:
        """Run a block. conv_input [B, C, T]; log_decay, beta [B, Hv, T]; returns [B, T, Hv, V]."""
        if block.tentative:
            self.staged_conv.copy_(conv_input)
            self.staged_log_decay.copy_(log_decay)
            self.staged_beta.copy_(beta)
        else:
            # A refused block has seen rows that nothing was written to: its inputs may be NaN, and NaN * 0 is NaN.
            conv_input = torch.where(torch.arange(conv_input.shape[-1]) < block.count, conv_input, 0.0)
            log_decay, beta = identity_after(block.count, log_decay, beta)
        window = torch.cat([self.conv_state, conv_input], dim=-1)
        query, key, value = self._heads(window)
        query = l2_normalize(query) * self.key_dim**-0.5
        out, state = self.kernels.gated_delta_rule(
            self._for_value_heads(query), key, value, log_decay, beta, self.recurrent_state
        )
        if not block.tentative:
            self.recurrent_state.copy_(state)
            self.conv_state.copy_(window_after(window, block.count, self.conv_state.shape[-1]))
        return out.transpose(1, 2)

    def commit(self, count: Tensor) -> None:
        window = torch.cat([self.conv_state, self.staged_conv], dim=-1)
        log_decay, beta = identity_after(count, self.staged_log_decay, self.staged_beta)
        _, key, value = self._heads(window)
        _, state = self.kernels.gated_delta_rule(key, key, value, log_decay, beta, self.recurrent_state)
        # Identity steps keep every value, but -0.0 + 0.0 is 0.0: the select keeps every bit.
        self.recurrent_state.copy_(torch.where(count > 0, state, self.recurrent_state))
        self.conv_state.copy_(window_after(window, count, self.conv_state.shape[-1]))

    def _heads(self, window: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Window [B, C, W + T] to query [B, Hk, T, K], normalized key [B, Hv, T, K] and value [B, Hv, T, V]."""
        assert self._convolve is not None, "bind() the mixer's convolution before running a block"
        mixed = self._convolve(window)
        T, size = mixed.shape[-1], self.key_heads * self.key_dim
        # Slices, not a split: backends take a slice as part of what comes before and after it.
        query, key, value = mixed[:, :size], mixed[:, size : 2 * size], mixed[:, 2 * size :]
        query, key = (x.unflatten(1, (self.key_heads, self.key_dim)).transpose(-1, -2) for x in (query, key))
        value = value.reshape(-1, self.value_heads, self.value_dim, T).transpose(-1, -2)
        return query, self._for_value_heads(l2_normalize(key)), value

    def _for_value_heads(self, x: Tensor) -> Tensor:
        """Each key head serves Hv / Hk value heads that follow each other: [B, Hk, T, K] to [B, Hv, T, K]."""
        group = self.value_heads // self.key_heads
        return x if group == 1 else x.unsqueeze(2).expand(-1, -1, group, -1, -1).flatten(1, 2)


def l2_normalize(x: Tensor) -> Tensor:
    """As transformers' ``l2norm`` in its delta rules: epsilon inside the root."""
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)
