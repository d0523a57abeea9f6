"""The state of a real-gated linear recurrent unit (RecurrentGemma): a conv window, and a number for each channel."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from hybridge.cache.block import CacheSizes
from hybridge.cache.conv_window import Convolution, unbound, window_after
from hybridge.cache.diagonal_scan import diagonal_scan
from hybridge.cache.kernels import Kernels
from hybridge.cache.recurrent import RecurrentLayer, States


class RgLruLayer(RecurrentLayer):
    """conv_state [B, C, W] and recurrent_state [B, C], the latter float32; C channels, W = conv kernel - 1.

    ``mix(conv_input, log_decay, input, block=...)`` takes [B, C, T] three times, input gated and normalized, and returns
    [B, T, C].
    """

    kind: ClassVar[str] = "rg_lru"

    conv_state: Tensor
    recurrent_state: Tensor

    def __init__(self, sizes: CacheSizes, kernels: Kernels, *, channels: int, conv_kernel: int) -> None:
        super().__init__(sizes, kernels)
        self.add_committed("conv_state", channels, conv_kernel - 1, dtype=sizes.dtype)
        self.add_committed("recurrent_state", channels)
        self.add_staged("staged_conv", channels, sizes.verify_len, dtype=sizes.dtype, gate=False)
        self.add_staged("staged_log_decay", channels, sizes.verify_len)
        self.add_staged("staged_input", channels, sizes.verify_len)
        self.convolve: Convolution = unbound

    def convolved(self, conv_input: Tensor) -> Tensor:
        """What the conv makes of a block's input [B, C, T], for the mixer to gate."""
        return self.convolve(torch.cat([self.conv_state, conv_input], dim=-1))

    def advance(self, inputs: tuple[Tensor, ...], count: Tensor) -> tuple[Tensor, States]:
        conv_input, log_decay, gated = inputs
        states = diagonal_scan(log_decay.exp(), gated, self.recurrent_state)
        window = torch.cat([self.conv_state, conv_input], dim=-1)
        conv_state = window_after(window, count, self.conv_state.shape[-1])
        return states.transpose(1, 2), {"recurrent_state": states[..., -1], "conv_state": conv_state}
