"""The state of a short convolution (LFM2, Inkling): nothing but a conv window."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from hybridge.cache.block import Block, CacheSizes
from hybridge.cache.conv_window import Convolution, unbound, window_after
from hybridge.cache.errors import CheckpointError
from hybridge.cache.kernels import Kernels
from hybridge.cache.layer import CacheLayer


class ShortConvLayer(CacheLayer):
    """conv_state [B, C, W], W = conv kernel - 1, in ``dtype`` (``sizes.dtype`` where it is left out).

    ``mix(x, block=...)`` takes the inputs [B, C, T] of the convolution, in that dtype, and returns its outputs [B, C, T].
    There is no other recurrence, so a commit only moves the window. The identity step is to keep the window where it is.
    """

    kind: ClassVar[str] = "short_conv"

    conv_state: Tensor
    staged_conv: Tensor

    def __init__(
        self, sizes: CacheSizes, kernels: Kernels, *, channels: int, conv_kernel: int, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__(sizes, kernels)
        if conv_kernel < 2:
            raise CheckpointError(
                f"config.json gives a short convolution a kernel of {conv_kernel}, expected 2 or more: "
                "a shorter one has no state. Check the kernel size in config.json."
            )
        self.add_committed("conv_state", channels, conv_kernel - 1, dtype=dtype or sizes.dtype)
        self.add_staged("staged_conv", channels, sizes.verify_len, dtype=dtype or sizes.dtype)
        self.convolve: Convolution = unbound

    def mix(self, x: Tensor, /, *, block: Block) -> Tensor:
        """The convolution over the block, with the activation that the mixer's ``convolve`` has."""
        return self.convolve(self.take(x, block))

    def take(self, x: Tensor, block: Block) -> Tensor:
        """Take the block's inputs in; returns the window [B, C, W + T] to convolve, for taps that depend on the token."""
        window = torch.cat([self.conv_state, x], dim=-1)
        if block.tentative:
            self.stage("staged_conv", x)
        else:
            # A select: inputs of padding or of a refused block, NaN perhaps, are not looked at.
            self.conv_state.copy_(window_after(window, block.count, self.conv_state.shape[-1]))
        return window

    def commit(self, count: Tensor) -> None:
        window = torch.cat([self.conv_state, self.staged_conv], dim=-1)
        self.conv_state.copy_(window_after(window, count, self.conv_state.shape[-1]))


def short_conv_naive(x: Tensor, weight: Tensor, bias: Tensor | None, window: Tensor) -> tuple[Tensor, Tensor]:
    """The definition, one token after the other: ``out[t] = bias + sum over w of weight[w] (window, x)[t + w]``.

    x [B, C, T], weight [C, W + 1], bias [C], window [B, C, W]. Returns the outputs [B, C, T] and the window after the last
    token. Source: transformers 5.23 ``Lfm2ShortConv``; Amini et al., "LFM2 Technical Report" (arXiv:2511.23404).
    """
    outputs = []
    for t in range(x.shape[-1]):
        inputs = torch.cat([window, x[..., t : t + 1]], dim=-1)
        outputs.append((inputs * weight).sum(-1) + (0.0 if bias is None else bias))
        window = inputs[..., 1:]
    return torch.stack(outputs, dim=-1), window
