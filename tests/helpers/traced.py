"""Functions as exported programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


def traced(function: Callable[..., Any], *inputs: Tensor) -> Any:
    """Export a function of tensors, with these as examples."""

    class Calls(nn.Module):
        def forward(self, *given: Tensor) -> Any:
            return function(*given)

    return torch.export.export(Calls(), inputs, strict=False)
