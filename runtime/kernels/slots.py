"""State into snapshot slots and back. slot is int64 [1], when bool [1]; each operator returns nothing of use."""

from __future__ import annotations

import torch
from torch import Tensor

from hybridge.runtime.kernels.define import define


def keep_state(state: Tensor, slots: Tensor, slot: Tensor, when: Tensor) -> Tensor:
    """Copy state [...] into slots [1, N, ...] at ``slot`` where ``when`` holds."""
    if bool(when):
        slots[0, int(slot)] = state.view(slots.shape[2:])
    return state.new_empty(1)


def bring_back(slots: Tensor, state: Tensor, slot: Tensor, when: Tensor) -> Tensor:
    """Copy what slots [1, N, ...] hold at ``slot`` into state [...] where ``when`` holds."""
    if bool(when):
        state.copy_(slots[0, int(slot)].view(state.shape))
    return state.new_empty(1)


def clear(state: Tensor, when: Tensor) -> Tensor:
    """Fill state with zeros where ``when`` holds."""
    if bool(when):
        state.zero_()
    return torch.empty(1)


define(
    "keep_state", "Tensor state, Tensor(a!) slots, Tensor slot, Tensor when", keep_state, lambda state, *_: state.new_empty(1)
)
define(
    "bring_back", "Tensor slots, Tensor(a!) state, Tensor slot, Tensor when", bring_back, lambda slots, *_: slots.new_empty(1)
)
define("clear", "Tensor(a!) state, Tensor when", clear, lambda state, when: torch.empty(1))
