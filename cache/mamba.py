"""The state of a Mamba mixer (the first version): a conv window, and a vector for each channel."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from hybridge.cache.block import CacheSizes
from hybridge.cache.conv_window import Convolution, unbound, window_after
from hybridge.cache.diagonal_scan import diagonal_scan
from hybridge.cache.kernels import Kernels
from hybridge.cache.recurrent import RecurrentLayer, States


class MambaLayer(RecurrentLayer):
    """conv_state [B, C, W] and recurrent_state [B, C, N] ([B, H, P, N] of several heads), the latter float32.

    C = H P channels in H heads (1 but for Zamba), W = conv kernel - 1, N state dim.

    ``mix(conv_input, dt, key, query, x, block=...)`` takes [B, C, T], dt [B, H, P, T] after softplus, key and query (Mamba's B
    and C) [B, H, N, T] and x [B, C, T], what the conv makes of its input; returns [B, T, C]. ``rate`` [H, P, N] (A, negative)
    and ``skip`` [H, P] (D) are the mixer's, in float32.
    """

    kind: ClassVar[str] = "mamba"

    conv_state: Tensor
    recurrent_state: Tensor
    rate: Callable[[], Tensor]
    skip: Callable[[], Tensor]

    def __init__(
        self, sizes: CacheSizes, kernels: Kernels, *, channels: int, state_dim: int, conv_kernel: int, heads: int = 1
    ) -> None:
        super().__init__(sizes, kernels)
        self.heads = heads
        by_head = (channels,) if heads == 1 else (heads, channels // heads)
        self.add_committed("conv_state", channels, conv_kernel - 1, dtype=sizes.dtype)
        self.add_committed("recurrent_state", *by_head, state_dim)
        self.add_staged("staged_conv", channels, sizes.verify_len, dtype=sizes.dtype, gate=False)
        self.add_staged("staged_dt", heads, channels // heads, sizes.verify_len)
        self.add_staged("staged_key", heads, state_dim, sizes.verify_len, gate=False)
        self.convolve: Convolution = unbound

    def convolved(self, conv_input: Tensor) -> Tensor:
        """What the conv makes of a block's input [B, C, T], for the mixer to project."""
        return self.convolve(torch.cat([self.conv_state, conv_input], dim=-1))

    def advance(self, inputs: tuple[Tensor, ...], count: Tensor) -> tuple[Tensor, States]:
        conv_input, dt, key, *reading = inputs
        query, x = reading or (key, self.convolved(conv_input))
        x = x.unflatten(1, (self.heads, -1)).float()
        decay = (dt.unsqueeze(3) * self.rate().unsqueeze(-1)).exp()  # [B, H, P, N, T]
        start = self.recurrent_state.view(decay.shape[:-1])
        states = diagonal_scan(decay, (dt * x).unsqueeze(3) * key.unsqueeze(2), start)
        out = (states * query.unsqueeze(2)).sum(3) + x * self.skip().unsqueeze(-1)
        window = torch.cat([self.conv_state, conv_input], dim=-1)
        return out.flatten(1, 2).transpose(1, 2), {
            "recurrent_state": states[..., -1].view(self.recurrent_state.shape),
            "conv_state": window_after(window, count, self.conv_state.shape[-1]),
        }
