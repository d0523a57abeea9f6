"""Checkpoints as files: one for the bounded states of each, one for each segment of rows, which checkpoints share.

A file is named after the SHA-256 of what it holds and never changes. Anybody can make a file with the right name: what it says
is held against the session's own buffers before it becomes a checkpoint.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from hybridge.cache.errors import StateFileError
from hybridge.runtime.files.regular import read_regular
from hybridge.runtime.sessions.checkpoint import TOKENS, Checkpoint, RowSegment
from hybridge.runtime.sessions.row_buffers import DRAFTED, LENGTH, RowBuffer

FORMAT = "hybridge-checkpoint-1"
HEADER = 1 << 20
"""Most bytes of names and numbers in a file."""
STATE, ROWS = ".state", ".rows"


@dataclass(frozen=True)
class Layout:
    """What a session's checkpoints look like. artifact: its identity; bounded: all but the length; rows: by position."""

    artifact: str
    vocab_size: int
    max_seq_len: int
    bounded: Mapping[str, Tensor]
    rows: Mapping[str, RowBuffer]

    def largest(self, name: str) -> int:
        """Return how many bytes a file of that name may have."""
        if name.endswith(STATE):
            return sum(each.nbytes for each in self.bounded.values()) + HEADER
        return sum(each.by_row.nbytes for each in self.rows.values()) + 8 * self.max_seq_len + HEADER


def state_file(checkpoint: Checkpoint, segment: str) -> bytes:
    """Return the file of a checkpoint's bounded states; segment: the name of its rows."""
    metadata = {"format": FORMAT, "artifact": str(checkpoint.model), "segment": segment}
    return _file(checkpoint.bounded, metadata)


def rows_file(artifact: str, segment: RowSegment, parent: str) -> bytes:
    """Return the file of a segment; parent: the name of the one before it, if any."""
    numbers = json.dumps({"length": segment.length, "counts": dict(segment.counts)})
    buffers = {f"rows.{name}": rows for name, rows in segment.rows.items()}
    buffers["tokens"] = torch.tensor(segment.tokens.tolist(), dtype=torch.int64)
    return _file(buffers, {"format": FORMAT, "artifact": artifact, "parent": parent, "numbers": numbers})


def _file(buffers: Mapping[str, Tensor], metadata: dict[str, str]) -> bytes:
    data: bytes = safetensors.torch.save({name: each.contiguous() for name, each in buffers.items()}, metadata)
    return data


def name_of(data: bytes, kind: str) -> str:
    """Return what a file is named."""
    return hashlib.sha256(data).hexdigest() + kind


def read_file(folder: Path, name: str, layout: Layout) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Return what a file's header says, and its buffers. Raises StateFileError for one that is damaged or another's."""
    try:
        data = read_regular(folder / name, layout.largest(name))
        if name_of(data, Path(name).suffix) != name:
            raise StateFileError(f"{folder / name} was damaged: it is not what it is named after.")
        buffers = safetensors.torch.load(data)
        metadata = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
    except OSError as error:
        raise StateFileError(f"{folder / name} cannot be read: {error.strerror}.") from None
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError, RuntimeError, RecursionError) as error:
        raise StateFileError(f"{folder / name} is no checkpoint ({str(error)[:200]}).") from None
    if metadata.get("format") != FORMAT or metadata.get("artifact") != layout.artifact:
        raise StateFileError(f"{folder / name} is of another version or another artifact.")
    return metadata, buffers


def segment_of(
    metadata: Mapping[str, str], buffers: dict[str, Tensor], parent: RowSegment | None, layout: Layout
) -> RowSegment:
    """Return the segment that a file holds. Raises StateFileError where the session could not have written it."""
    try:
        match json.loads(metadata["numbers"]):
            case {"length": int(length), "counts": dict(counts), **rest} if not rest:
                pass
            case _:
                raise ValueError("it has other numbers")
        tokens = buffers.pop("tokens")
        known, before = (parent.length, parent.counts) if parent is not None else (0, dict.fromkeys(layout.rows, 0))
        _require(type(length) is int and known <= length <= layout.max_seq_len, "its text has a length that cannot be")
        _require(tokens.dtype == torch.int64 and tokens.shape == (length - known,), "its tokens are not those of its length")
        _require(bool(((tokens >= 0) & (tokens < layout.vocab_size)).all()), "it has a token outside the vocabulary")
        _require(counts.keys() == layout.rows.keys(), "it has rows of other buffers")
        new = {f"rows.{name}": _missing(layout.rows[name], before[name], count) for name, count in counts.items()}
        wanted = {name: shape for name, shape in new.items() if shape[0][0]}
        found = {name: (tuple(rows.shape), rows.dtype) for name, rows in buffers.items()}
        _require(found == wanted, "its rows are not those of its numbers")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise StateFileError(f"this is no checkpoint of this artifact: {error}.") from None
    rows = {name.removeprefix("rows."): each for name, each in buffers.items()}
    return RowSegment(parent, array(TOKENS, tokens.tolist()), length, counts, rows)


def checkpoint_of(buffers: Mapping[str, Tensor], segment: RowSegment, layout: Layout) -> Checkpoint:
    """Return the checkpoint of bounded states and rows. Raises StateFileError where they do not belong together."""
    wanted = {name: (each.shape, each.dtype) for name, each in layout.bounded.items()}
    try:
        _require({name: (each.shape, each.dtype) for name, each in buffers.items()} == wanted, "its buffers are others")
        counters: dict[str, int] = {LENGTH: segment.length}
        for name in (each for each in buffers if each.rpartition(".")[2] == DRAFTED):
            (number,) = buffers[name].flatten().tolist()
            _require(0 <= number <= segment.length and float(number).is_integer(), f"a drafter has read {number} tokens")
            counters[name] = int(number)
        for name, rows in layout.rows.items():
            count = counters[rows.counter] // rows.positions
            _require(segment.counts[name] == count, f"{name} has {segment.counts[name]} rows, and {count} were expected")
    except (ValueError, KeyError) as error:
        raise StateFileError(f"this is no checkpoint of this artifact: {error}.") from None
    return Checkpoint(layout.artifact, buffers, segment)


def _missing(buffer: RowBuffer, before: int, count: object) -> tuple[tuple[int, ...], torch.dtype]:
    """Shape and type of the rows from ``before`` to ``count``. Raises ValueError for more than there are."""
    shape: Sequence[int] = buffer.by_row.shape
    most = torch.Size(shape[: buffer.places]).numel()
    if type(count) is not int or not before <= count <= most:
        raise ValueError(f"it has {count} rows, of at most {most}")
    return (count - before, *shape[buffer.places :]), buffer.by_row.dtype


def _require(fine: bool, reason: str) -> None:
    if not fine:
        raise ValueError(reason)
