"""Calls that a program itself must refuse, whatever runs it and without the checks of a Session."""

from __future__ import annotations

import torch
from torch import Tensor

from hybridge.runtime import Session
from hybridge.runtime.core.programs import number, padded

REFUSED = [
    ("commit", [number(1)]),
    ("snapshot", [number(2)]),
    ("snapshot", [number(-1)]),
    ("restore", [number(0)]),
    ("restore", [number(-1)]),
    ("restore", [number(7)]),
    ("prefill", [padded([1], 17), number(0)]),
    ("prefill", [padded([1], 17), number(18)]),
    ("forward", [torch.tensor([[1]]), number(2)]),
]
"""Methods and inputs, for two slots, a chunk of 17 and a state without a block that is longer than 2 tokens."""


def refuses(session: Session, name: str, inputs: list[Tensor]) -> bool:
    """Whether the answer is -1, or NaN logits."""
    (answer,) = session.model.program.call(name, *inputs)
    return bool(answer.isnan().all()) if answer.is_floating_point() else answer.tolist() == [-1]
