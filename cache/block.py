"""Define the tokens of one call as every layer sees them, and the fixed sizes that all layers share."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import statically_known_true

T = TypeVar("T")
Seeing = Literal["windows", "everywhere"] | None
"""Layers in which the real tokens of a block see each other: those with a window, or all."""


@dataclass(frozen=True, kw_only=True)
class CacheSizes:
    """Sizes that fix every buffer, in tokens except for ``batch_size`` and ``snapshot_slots``.

    Args:
        dtype: of keys, values and conv windows; recurrent states are always float32, as in every reference.
        kv_dtype: float16 or int8 to round keys and values of full attention to it, None to keep them.
        before_window: positions before a window that are kept for a drafter that sees them.
        picture_rows: most rows of a picture that see each other, which one call reads; 0 if none do.
    """

    max_seq_len: int
    prefill_chunk: int = 64
    verify_len: int = 8
    snapshot_slots: int = 0
    batch_size: int = 1
    dtype: torch.dtype = torch.float32
    kv_dtype: torch.dtype | None = None
    before_window: int = 0
    picture_rows: int = 0

    @property
    def rows(self) -> int:
        """Return the rows of a key or value buffer: a block may start on the last position, so one block fits after it."""
        return self.max_seq_len + max(self.prefill_chunk, self.verify_len, self.picture_rows)


@dataclass(frozen=True, kw_only=True)
class Block:
    """T tokens to run over the state.

    Args:
        start: int64 [1], the position of the first.
        count: int64 [1], the number of real tokens; the others are padding and leave the state unchanged.
        tentative: stage the block for a later ``commit`` and leave the committed state alone.
        ahead: added to positions to get positions in the text, for state that begins after the text's first tokens.
        rope: float32 [T], or [3, T] for rope of three axes, if the rope positions of the tokens are not their positions.
        bidirectional: the real tokens see each other, as the rows of a picture do, in layers with a window or everywhere.
    """

    start: Tensor
    count: Tensor
    length: int
    tentative: bool = False
    ahead: int = 0
    rope: Tensor | None = None
    bidirectional: Seeing = None
    _shared: dict[tuple[Hashable, int], tuple[object, Any]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def positions(self) -> Tensor:
        """Return int64 [T], the position of each token."""
        return self.start + torch.arange(self.length)

    @property
    def rope_positions(self) -> Tensor:
        """Return [T], or [3, T] for the rows of a picture: where rope turns each token."""
        return self.positions if self.rope is None else self.rope

    @property
    def text_positions(self) -> Tensor:
        """Return int64 [T], the position of each token in the text."""
        return self.positions + self.ahead if self.ahead else self.positions

    @property
    def last_seen(self) -> Tensor:
        """Return int64 [T], the last position that each token sees where the tokens may see each other."""
        return torch.maximum(self.positions, self.start + self.count - 1) if self.bidirectional else self.positions

    @property
    def real(self) -> Tensor:
        """Return bool [T], false for padding."""
        return self.shared("real", lambda: torch.arange(self.length) < self.count)

    def is_longer_than(self, tokens: int) -> bool:
        """Return whether T may be larger, if it is a symbol: what is done for a longer block is right for any."""
        return not statically_known_true(self.length <= tokens)

    def shared(self, key: Hashable, compute: Callable[[], T], of: object = None) -> T:
        """Return what ``compute`` returned at the first call with this key and object ``of``: layers share masks this way.

        The object itself counts, not its equals: two tensors cannot be compared without looking at all their elements.
        """
        # The object is kept beside its result: once it is gone, another one may get the same id.
        entry = (key, id(of))
        if entry not in self._shared:
            self._shared[entry] = of, compute()
        return self._shared[entry][1]  # type: ignore[no-any-return]
