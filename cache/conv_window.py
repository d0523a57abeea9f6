"""A causal convolution's window: the last W = kernel - 1 inputs, zeros before the first token."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class Convolution(Protocol):
    """Causal convolution with its activation: window [B, C, W + T] to [B, C, T]. A mixer sets it on its cache layer."""

    def __call__(self, window: Tensor, /) -> Tensor: ...


def unbound(window: Tensor, /) -> Tensor:
    """Stands for the convolution until a mixer sets its own."""
    raise AssertionError("set the mixer's convolution on the cache layer before running a block")


def window_after(window: Tensor, count: Tensor, width: int) -> Tensor:
    """The window once ``count`` (int64 [1]) of the T new inputs are in: window [B, C, W + T] to [B, C, W].

    For ``count = 0`` this is the old window, bit for bit.
    """
    return window.index_select(-1, count + torch.arange(width))
