"""Activations, alone and as the gate of a product."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from hybridge.runtime.kernels.define import define

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
