"""The methods of an artifact over one state: what a Session runs over and each backend implements, with their tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor


class Methods(Protocol):
    """The methods of an artifact over one state; ``hybridge.runtime.backends.load`` has those of artifacts."""

    def call(self, name: str, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Run a method; the outputs are the caller's own."""

    def state(self) -> Mapping[str, Tensor]:
        """Return every buffer of the state by name: the memory itself."""

    def bounded(self) -> Mapping[str, Tensor]:
        """The buffers without which a longer text cannot be cut back to this one, ``length`` among them: the memory itself."""

    def operations(self) -> int:
        """Calls so far that changed the state; the last thing that a call does is to count itself."""


def padded(ids: list[int], size: int) -> Tensor:
    """Return int64 [1, size]; the padding repeats token 0, which every vocabulary has."""
    return torch.tensor([ids + [0] * (size - len(ids))])


def number(value: int) -> Tensor:
    """Return int64 [1]."""
    return torch.tensor([value])
