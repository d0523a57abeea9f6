"""Checkpoints: states in memory that a session goes on from, each with no more than what its text added.

Rows by position lie in segments, each the rows since the segment before it; checkpoints whose texts begin alike share these.
Bounded states are copied whole: they have no position.
"""

from __future__ import annotations

import weakref
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from hybridge.runtime.sessions.row_buffers import LENGTH, RowBuffer

TOKENS = "q"
"""Type of the arrays that keep tokens: 8 bytes each."""


@dataclass(frozen=True, eq=False)
class RowSegment:
    """Rows by position of the tokens behind those of ``parent``; parts of one text, which is never changed.

    rows [n, ...] by buffer; counts: rows of each buffer up to the segment's end; length: tokens up to there.
    """

    parent: RowSegment | None
    tokens: array[int]
    length: int
    counts: Mapping[str, int]
    rows: Mapping[str, Tensor]

    @property
    def nbytes(self) -> int:
        """Return the bytes of its own rows and tokens."""
        return sum(each.nbytes for each in self.rows.values()) + self.tokens.itemsize * len(self.tokens)

    def chain(self) -> list[RowSegment]:
        """Return the segments of the text in order, this one last."""
        return list(self._upwards())[::-1]

    def _upwards(self) -> Iterator[RowSegment]:
        segment: RowSegment | None = self
        while segment is not None:
            yield segment
            segment = segment.parent


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A state of a session, made by ``Session.checkpoint``; any session over the same artifact can resume it.

    model: what it is a state of. bounded: copies of the bounded buffers by name. segment: the last rows by position.
    """

    model: object
    bounded: Mapping[str, Tensor]
    segment: RowSegment

    @property
    def length(self) -> int:
        """Return the number of committed tokens."""
        return self.segment.length

    @property
    def tokens(self) -> list[int]:
        """Return the committed tokens."""
        return [token for segment in self.segment.chain() for token in segment.tokens]

    @property
    def nbytes(self) -> int:
        """Return the bytes that it does not share with checkpoints of shorter texts."""
        return self.bounded_bytes + self.segment.nbytes

    @property
    def bounded_bytes(self) -> int:
        """Return the bytes of its bounded states."""
        return sum(each.nbytes for each in self.bounded.values())


class Lineage:
    """The segments whose rows are still in a session's memory as they are in the segment, from the first on.

    It does not keep them alive: that is for the checkpoints of those who may resume them.
    """

    def __init__(self, segments: Sequence[RowSegment] = ()) -> None:
        self._segments = [weakref.ref(each) for each in segments]

    def last(self) -> RowSegment | None:
        """Return the longest segment that somebody still keeps."""
        return next((segment for known in reversed(self._segments) if (segment := known()) is not None), None)

    def until(self, length: int) -> Lineage:
        """Return those of fewer than ``length`` tokens."""
        kept = (segment for known in self._segments if (segment := known()) is not None)
        return Lineage([segment for segment in kept if segment.length < length])


def make_checkpoint(
    model: object, tokens: Sequence[int], state: Mapping[str, Tensor], bounded: Mapping[str, Tensor],
    buffers: Mapping[str, RowBuffer], parent: RowSegment | None,
) -> Checkpoint:  # fmt: skip
    """Copy the bounded buffers, and the rows by position that ``parent``, a beginning of the text, does not have."""
    counts = {name: buffer.filled(state) for name, buffer in buffers.items()}
    copies = {name: buffer.clone() for name, buffer in bounded.items() if name != LENGTH}
    if parent is not None and parent.length == len(tokens) and parent.counts == counts:
        return Checkpoint(model, copies, parent)
    starts, known = (parent.counts, parent.length) if parent is not None else (dict.fromkeys(buffers, 0), 0)
    rows = {name: buffer.read(starts[name], counts[name]) for name, buffer in buffers.items() if counts[name] > starts[name]}
    return Checkpoint(model, copies, RowSegment(parent, array(TOKENS, tokens[known:]), len(tokens), counts, rows))


def write_rows(segments: Sequence[RowSegment], buffers: Mapping[str, RowBuffer]) -> None:
    """Put the rows of segments into a state."""
    for segment in segments:
        for name, rows in segment.rows.items():
            buffers[name].write(segment.counts[name] - len(rows), rows)
