"""Rotary position embedding. Axes: B batch, T tokens, H heads, D head dim, R the part of it that turns."""

from __future__ import annotations

import torch
from torch import Tensor

from hybridge.runtime.kernels.define import define


def rotary(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """Turn the first R numbers of each head by its position's angles; x float32 [B, T, H, D], the others stay.

    cos and sin hold R numbers for each of T or B * T positions, in any shape that ends in R. Pairs are the two halves of
    R, or neighbours where ``interleaved``. Source: Su et al. (arXiv:2104.09864).
    """
    T, R = x.shape[1], cos.shape[-1]
    turning, rest = x[..., :R], x[..., R:]
    cos, sin = (each.reshape(-1, T, 1, R) for each in (cos, sin))
    other = rotate_neighbours(turning) if interleaved else rotate_half(turning)
    return torch.cat([turning * cos + other * sin, rest], dim=-1)


def rotate_half(x: Tensor) -> Tensor:
    """Rotate the halves of the last dimension: (a, b) to (-b, a)."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat([-second, first], dim=-1)


def rotate_neighbours(x: Tensor) -> Tensor:
    """Rotate each two numbers that follow each other likewise."""
    return torch.stack([-x[..., 1::2], x[..., 0::2]], dim=-1).flatten(-2)


define(
    "rotary",
    "Tensor x, Tensor cos, Tensor sin, bool interleaved",
    rotary,
    lambda x, cos, sin, interleaved: x.new_empty(x.shape),
)
