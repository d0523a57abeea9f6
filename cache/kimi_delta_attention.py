"""The state of Kimi delta attention (Kimi Linear, Ling 3, GLM-5.3-Flash): a conv window and a matrix for each head."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from hybridge.cache.block import CacheSizes
from hybridge.cache.conv_window import Convolution, unbound, window_after
from hybridge.cache.gated_delta_net import l2_normalize
from hybridge.cache.kernels import Kernels
from hybridge.cache.recurrent import RecurrentLayer, States


class KimiDeltaAttentionLayer(RecurrentLayer):
    """conv_state [B, 3 H D, W] of query, key and value, and recurrent_state [B, H, D, D], the latter float32.

    H heads, D head dim, W = conv kernel - 1.

    ``mix(conv_input, log_decay, beta, block=...)`` takes [B, 3 H D, T], [B, H, D, T], [B, H, T] and returns [B, T, H, D].
    """

    kind: ClassVar[str] = "kimi_delta_attention"

    conv_state: Tensor
    recurrent_state: Tensor

    def __init__(self, sizes: CacheSizes, kernels: Kernels, *, heads: int, head_dim: int, conv_kernel: int) -> None:
        super().__init__(sizes, kernels)
        self.heads, self.head_dim = heads, head_dim
        channels = 3 * heads * head_dim
        self.add_committed("conv_state", channels, conv_kernel - 1, dtype=sizes.dtype)
        self.add_committed("recurrent_state", heads, head_dim, head_dim)
        self.add_staged("staged_conv", channels, sizes.verify_len, dtype=sizes.dtype, gate=False)
        self.add_staged("staged_log_decay", heads, head_dim, sizes.verify_len)
        self.add_staged("staged_beta", heads, sizes.verify_len)
        self.convolve: Convolution = unbound

    def advance(self, inputs: tuple[Tensor, ...], count: Tensor) -> tuple[Tensor, States]:
        conv_input, log_decay, beta = inputs
        window = torch.cat([self.conv_state, conv_input], dim=-1)
        heads = self._heads(window)
        out, state = self.kernels.gated_delta_rule(*heads, log_decay.transpose(-1, -2), beta, self.recurrent_state)
        conv_state = window_after(window, count, self.conv_state.shape[-1])
        return out.transpose(1, 2), {"recurrent_state": state, "conv_state": conv_state}

    def _heads(self, window: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Window [B, 3 H D, W + T] to scaled query, normalized key, and value, each [B, H, T, D]."""
        mixed = self.convolve(window).unflatten(1, (3 * self.heads, self.head_dim)).transpose(-1, -2)
        H, value = self.heads, mixed[:, 2 * self.heads :]
        normalized = l2_normalize(mixed[:, : 2 * H])
        return normalized[:, :H] * self.head_dim**-0.5, normalized[:, H:], value
