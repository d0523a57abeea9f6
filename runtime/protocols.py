"""What a Session runs over: something with methods over one state, and a description of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from torch import Tensor

from hybridge.runtime.manifest import ExportOptions


class Methods(Protocol):
    """What runs the methods of an artifact over one state; ``hybridge.runtime.backends`` has those of artifacts."""

    def call(self, name: str, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Run a method; the outputs are the caller's own."""

    def state(self) -> Mapping[str, Tensor]:
        """Every buffer of the state by name: the memory itself."""


Oracle = Callable[[Sequence[int]], Tensor]
"""Tokens to the float32 logits [T, V] that a model should give."""


class Description(Protocol):
    """What a Session must know of its model; an artifact's manifest says it."""

    @property
    def model_type(self) -> str: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def eos_ids(self) -> list[int]: ...
    @property
    def options(self) -> ExportOptions: ...
    @property
    def identity(self) -> str | None:
        """What tells it from every other model; none where nothing does."""
