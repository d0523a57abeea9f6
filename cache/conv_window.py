"""A causal convolution's window: the last W = kernel - 1 inputs, zeros before the first token."""

from __future__ import annotations

import torch
from torch import Tensor


def window_after(window: Tensor, count: Tensor, width: int) -> Tensor:
    """The window once ``count`` (int64 [1]) of the T new inputs are in: window [B, C, W + T] to [B, C, W].

    For ``count = 0`` this is the old window, bit for bit.
    """
    return window.index_select(-1, count + torch.arange(width))
