"""Tensors that methods take."""

from __future__ import annotations

import torch
from torch import Tensor


def padded(ids: list[int], size: int) -> Tensor:
    """Return int64 [1, size]; the padding repeats token 0, which every vocabulary has."""
    return torch.tensor([ids + [0] * (size - len(ids))])


def number(value: int) -> Tensor:
    """Return int64 [1]."""
    return torch.tensor([value])
