"""A short causal convolution and its window: the last W = kernel - 1 inputs as rows, zeros before the first token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


def no_bias() -> None:
    """Return no bias, for a convolution without one."""


@dataclass(frozen=True, kw_only=True)
class ShortConvolution:
    """A mixer's convolution. Weights are asked for anew in every call, as an export has to see where they come from.

    weight gives [C, 1, K], the newest tap last, and bias [C] or None; ``name`` is what kernels may know the activation by.
    """

    weight: Callable[[], Tensor]
    bias: Callable[[], Tensor | None] = no_bias
    activation: Callable[[Tensor], Tensor] | None = None
    name: str | None = None

    @property
    def taps(self) -> Tensor:
        """Return the weight as rows [K, C]."""
        return self.weight().squeeze(1).T.contiguous()

    def activate(self, mixed: Tensor) -> Tensor:
        """Apply the activation, if there is one."""
        return self.activation(mixed) if self.activation else mixed

    def over(self, rows: Tensor) -> Tensor:
        """Convolve window and inputs [B, W + T, C]; returns [B, T, C]."""
        weight = self.weight()
        return swapped(self.activate(F.conv1d(rows.transpose(1, 2), weight, self.bias(), groups=weight.shape[0])))


def swapped(x: Tensor) -> Tensor:
    """Transpose [B, X, Y] to [B, Y, X]: for one row or column a view of the same memory, which no runtime copies."""
    return x.reshape(x.shape[0], x.shape[2], x.shape[1]) if 1 in x.shape[1:] else x.transpose(1, 2)


def window_after(rows: Tensor, count: Tensor, width: int) -> Tensor:
    """Return the window after ``count`` (int64 [1]) of the T new inputs: window and inputs [B, W + T, C] to [B, W, C].

    For ``count = 0`` this is the old window, bit for bit.
    """
    return rows.index_select(1, count + torch.arange(width))
