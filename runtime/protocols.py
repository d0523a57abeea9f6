"""What a Session runs over: something with methods over one state, and a description of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

from torch import Tensor

from hybridge.runtime.drafter import Drafter
from hybridge.runtime.generation_stats import GenerationStats
from hybridge.runtime.manifest import ExportOptions


class Methods(Protocol):
    """What runs the methods of an artifact over one state; ``hybridge.runtime.backends`` has those of artifacts."""

    def call(self, name: str, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Run a method; the outputs are the caller's own."""

    def state(self) -> Mapping[str, Tensor]:
        """Every buffer of the state by name: the memory itself."""

    def bounded(self) -> Mapping[str, Tensor]:
        """The buffers without which a longer text cannot be cut back to this one, ``length`` among them: the memory itself."""

    def operations(self) -> int:
        """Calls so far that changed the state; the last thing that a call does is to count itself."""


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


class CheckedSession(Protocol):
    """What a validation drives: a ``Session``, or one of another harness."""

    @property
    def manifest(self) -> Description: ...
    @property
    def max_seq_len(self) -> int: ...
    @property
    def prefill_chunk(self) -> int: ...
    @property
    def verify_len(self) -> int: ...
    @property
    def snapshot_slots(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def length(self) -> int: ...
    @property
    def room(self) -> int: ...
    def prefill(self, tokens: Sequence[int], /) -> Tensor: ...
    def decode(self, token: int, /) -> Tensor: ...
    def verify(self, tokens: Sequence[int], /) -> Tensor: ...
    def commit(self, count: int, /) -> int: ...
    def snapshot(self, slot: int, /) -> int: ...
    def restore(self, slot: int, /) -> int: ...
    def reset(self) -> int: ...
    def generate(
        self,
        tokens: Sequence[int],
        /,
        *,
        max_new_tokens: int,
        drafter: Drafter | None = None,
        block_length: int | None = None,
        stats: GenerationStats | None = None,
    ) -> Iterator[int]: ...
