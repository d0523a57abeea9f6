"""What is done with logits between two calls of a program, on the thread that calls.

PyTorch does it on threads of its own, which look out for more work for a millisecond before they sleep: on the very cores that
the program's threads want next. With two threads on two cores a verify took 10.9 ms instead of 6.5.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor


def copied(tensor: Tensor) -> Tensor:
    """Return a copy."""
    return torch.from_numpy(tensor.detach().numpy().copy())


def total(numbers: Tensor) -> float:
    """Return the sum of floats, which is finite only if all of them are; it may be infinite where they are not."""
    with np.errstate(all="ignore"):
        return float(_array(numbers).sum())


def best(logits: Tensor) -> list[int]:
    """Return the token of the largest of each row's logits [n, V], the first of several."""
    tokens: list[int] = _array(logits).argmax(-1).tolist()
    return tokens


def _array(tensor: Tensor) -> Any:
    return tensor.detach().numpy()
