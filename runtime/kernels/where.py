"""A choice between two tensors, number by number."""

from __future__ import annotations

import torch
from torch import Tensor

from hybridge.runtime.kernels.define import define


def where(condition: Tensor, x: Tensor, other: Tensor) -> Tensor:
    """Return x where condition (bool) holds, else other; x and other of the same dtype, all three broadcast."""
    return torch.where(condition, x, other)


def _shape(condition: Tensor, x: Tensor, other: Tensor) -> Tensor:
    return x.new_empty(torch.broadcast_shapes(condition.shape, x.shape, other.shape))


define("where", "Tensor condition, Tensor x, Tensor other", where, _shape)
