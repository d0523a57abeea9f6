"""The state of a gated delta net (Qwen3-Next, Qwen3.5): a conv window and a matrix for each head."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from hybridge.cache.block import CacheSizes
from hybridge.cache.conv_window import Convolution, unbound, window_after
from hybridge.cache.kernels import Kernels
from hybridge.cache.recurrent import RecurrentLayer, States


class GatedDeltaNetLayer(RecurrentLayer):
    """conv_state [B, C, W] and recurrent_state [B, Hv, K, V], the latter float32.

    C = 2 Hk K + Hv V channels (query, key, value), W = conv kernel - 1, Hk key heads, Hv value heads.

    ``mix(conv_input, log_decay, beta, block=...)`` takes [B, C, T], [B, Hv, T], [B, Hv, T] and returns [B, T, Hv, V].
    """

    kind: ClassVar[str] = "gated_delta_net"

    conv_state: Tensor
    recurrent_state: Tensor

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
        S = sizes.verify_len
        self.add_staged("staged_conv", channels, S, dtype=sizes.dtype, gate=False)
        self.add_staged("staged_key", key_heads, S, key_dim, dtype=sizes.dtype, gate=False, time_axis=2)
        self.add_staged("staged_value", value_heads, S, value_dim, dtype=sizes.dtype, gate=False, time_axis=2)
        self.add_staged("staged_log_decay", value_heads, S)
        self.add_staged("staged_beta", value_heads, S)
        self.convolve: Convolution = unbound

    def prepare(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Conv and norms are most of a replay, so their results are staged: key [B, Hk, T, K], value [B, Hv, T, V]."""
        conv_input, log_decay, beta = inputs
        query, key, value = self._heads(torch.cat([self.conv_state, conv_input], dim=-1))
        return conv_input, key, value, log_decay, beta, query

    def advance(self, inputs: tuple[Tensor, ...], count: Tensor) -> tuple[Tensor, States]:
        conv_input, key, value, log_decay, beta, *reading = inputs
        query, key = (self._for_value_heads(x) for x in (reading[0] if reading else key, key))
        window = torch.cat([self.conv_state, conv_input], dim=-1)
        out, state = self.kernels.gated_delta_rule(query, key, value, log_decay, beta, self.recurrent_state)
        conv_state = window_after(window, count, self.conv_state.shape[-1])
        return out.transpose(1, 2), {"recurrent_state": state, "conv_state": conv_state}

    def _heads(self, window: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Window [B, C, W + T] to scaled query and normalized key [B, Hk, T, K], and value [B, Hv, T, V]."""
        mixed = self.convolve(window)
        T, size = mixed.shape[-1], self.key_heads * self.key_dim
        # Slices, not a split: backends take a slice as part of what comes before and after it.
        query, key, value = mixed[:, :size], mixed[:, size : 2 * size], mixed[:, 2 * size :]
        query, key = (x.unflatten(1, (self.key_heads, -1)).transpose(-1, -2) for x in (query, key))
        # The key first: XNNPACK's partitioner makes islands of the norms that depend on each other when the query comes first.
        key, query = l2_normalize(key), l2_normalize(query)
        value = value.reshape(-1, self.value_heads, self.value_dim, T).transpose(-1, -2)
        return query * self.key_dim**-0.5, key, value

    def _for_value_heads(self, x: Tensor) -> Tensor:
        """Each key head serves Hv / Hk value heads that follow each other: [B, Hk, T, K] to [B, Hv, T, K]."""
        group = self.value_heads // self.key_heads
        return x if group == 1 else x.unsqueeze(2).expand(-1, -1, group, -1, -1).flatten(1, 2)


def l2_normalize(x: Tensor) -> Tensor:
    """As transformers' ``l2norm`` in its delta rules: epsilon inside the root."""
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)
