"""Define norms, activations and rotary embeddings of float32 tensors.

Axes: B batch, T tokens, H heads, D the last dimension, R the part of a head that turns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from hybridge.export.operators.define import define


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """Return ``x / sqrt(mean(x^2) + eps) * weight`` for x [..., D] and weight [D], or [G, D] for x [..., G, D], or none.

    Source: Zhang and Sennrich (arXiv:1910.07467).
    """
    normed = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return normed if weight is None else normed * weight


def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """Return ``(x - mean(x)) / sqrt(var(x) + eps) * weight + bias`` for x [..., D], weight and bias [D] or none.

    Source: Ba, Kiros and Hinton (arXiv:1607.06450).
    """
    return F.layer_norm(x, x.shape[-1:], weight, bias, eps)


define("rms_norm", "Tensor x, Tensor? weight, float eps", rms_norm, lambda x, weight, eps: x.new_empty(x.shape))
define(
    "layer_norm",
    "Tensor x, Tensor? weight, Tensor? bias, float eps",
    layer_norm,
    lambda x, weight, bias, eps: x.new_empty(x.shape),
)


ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "tanh": torch.tanh,
    "softplus": F.softplus,
}


def activation(x: Tensor, name: str) -> Tensor:
    """Return the activation ``name`` of each number of x, float32."""
    return ACTIVATIONS[name](x)


def gated(x: Tensor, gate: Tensor, name: str) -> Tensor:
    """Return x times the activation ``name`` of gate, float32 of the same shape: SwiGLU for ``silu``, GeGLU for ``gelu``."""
    return x * ACTIVATIONS[name](gate)


define("activation", "Tensor x, str name", activation, lambda x, name: x.new_empty(x.shape))
define("gated", "Tensor x, Tensor gate, str name", gated, lambda x, gate, name: x.new_empty(x.shape))


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
