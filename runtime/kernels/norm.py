"""Norms over the last dimension D of float32 tensors."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from hybridge.runtime.kernels.define import define


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
