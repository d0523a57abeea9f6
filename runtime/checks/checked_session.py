"""What a validation compares: a session of any harness, and an oracle."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hybridge.runtime.artifacts.options import Description
from hybridge.runtime.core.drafters import Drafter
from hybridge.runtime.core.statistics import GenerationStats

Oracle = Callable[[Sequence[int]], Tensor]
"""Tokens to the float32 logits [T, V] that a model should give."""


Logits = Tensor | NDArray[np.float32]


class CheckedSession(Protocol):
    """The session that a validation drives: a ``Session``, or one of the native core."""

    @property
    def manifest(self) -> Description: ...
    @property
    def verify_len(self) -> int: ...
    @property
    def room(self) -> int: ...
    @property
    def max_seq_len(self) -> int: ...
    @property
    def prefill_chunk(self) -> int: ...
    @property
    def snapshot_slots(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def length(self) -> int: ...
    def prefill(self, tokens: Sequence[int], /) -> Logits: ...
    def decode(self, token: int, /) -> Logits: ...
    def verify(self, tokens: Sequence[int], /) -> Logits: ...
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
