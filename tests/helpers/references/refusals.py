"""Calls that a program itself must refuse, whatever runs it and without the checks of a session."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridge.runtime.binding.programs import Program

Inputs = list[NDArray[Any]]


def number(value: int) -> NDArray[np.int64]:
    """Return an input of one number."""
    return np.array([value])


def padded(tokens: list[int], size: int) -> NDArray[np.int64]:
    """Return tokens [1, size], with zeros after them."""
    return np.array([tokens + [0] * (size - len(tokens))])


REFUSED: list[tuple[str, Inputs]] = [
    ("commit", [number(1)]), ("snapshot", [number(2)]), ("snapshot", [number(-1)]), ("restore", [number(0)]),
    ("restore", [number(-1)]), ("restore", [number(7)]), ("prefill", [padded([1], 17), number(0)]),
    ("prefill", [padded([1], 17), number(18)]), ("forward", [np.array([[1]]), number(2)]),
]  # fmt: skip
"""Methods and inputs, for two slots, a chunk of 17 and a state without a block that is longer than 2 tokens."""


def refuses(program: Program | None, name: str, inputs: Inputs) -> bool:
    """Whether the answer is -1, or NaN logits."""
    assert program is not None
    (answer,) = program.call(name, *inputs)
    return bool(np.isnan(answer).all()) if answer.dtype == np.float32 else answer.tolist() == [-1]
