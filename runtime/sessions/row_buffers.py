"""The buffers of a state that have a row for each position, and where the row of a position lies in them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from hybridge.cache.operations.quantized_rows import key_rows, value_rows
from hybridge.runtime.artifacts.options import ExportOptions

OWN = ("length", "staged", "slot_length", "operations")
LENGTH, DRAFTED = "length", "drafted_length"


@dataclass(frozen=True)
class RowBuffer:
    """by_row: a view of the memory, [*places, ...]; the row with number r is at the r-th place of the first dimensions.

    positions: how many of them share a row. counter: the buffer that says how many positions count.
    """

    by_row: Tensor
    places: int = 1
    positions: int = 1
    counter: str = LENGTH

    def filled(self, state: Mapping[str, Tensor]) -> int:
        """Return how many rows the state's text has filled."""
        return int(state[self.counter]) // self.positions

    def read(self, start: int, stop: int) -> Tensor:
        """Return a copy [stop - start, ...] of rows."""
        rows: Tensor = self.by_row[start:stop].clone() if self.places == 1 else self.by_row[self._index(start, stop)]
        return rows.contiguous()

    def write(self, start: int, rows: Tensor) -> None:
        """Put rows [n, ...] into the places from ``start`` on."""
        if self.places == 1:
            self.by_row[start : start + len(rows)] = rows
        else:
            self.by_row[self._index(start, start + len(rows))] = rows

    def _index(self, start: int, stop: int) -> tuple[Tensor, ...]:
        return torch.unravel_index(torch.arange(start, stop), self.by_row.shape[: self.places])


def row_buffers(state: Mapping[str, Tensor], bounded: Collection[str], options: ExportOptions) -> dict[str, RowBuffer]:
    """Return by name the buffers that are neither bounded, nor of slots, nor staged: docs/artifact.md has their shapes."""
    names = [name for name in state if name not in bounded and not _is_auxiliary(name)]
    drafter = next((name for name in bounded if name.endswith(f".{DRAFTED}")), None)
    first = _layer(drafter) if drafter is not None else None
    return {
        name: _row_buffer(name, state, options, drafter if first is not None and _layer(name) > first else None)
        for name in names
    }


def _row_buffer(name: str, state: Mapping[str, Tensor], options: ExportOptions, drafter: str | None) -> RowBuffer:
    buffer, counter = state[name], drafter or LENGTH
    prefix, _, own = name.rpartition(".")
    if buffer.dim() == 1:
        return RowBuffer(buffer)
    if options.format == "onnx":
        return RowBuffer(buffer[0].transpose(0, 1))
    if f"{prefix}.key_scales" in state:
        return _quantized(own, buffer, counter)
    rows = options.max_seq_len + max(options.prefill_chunk, options.verify_len)
    # Fewer rows than positions are those of pools, each made with the help of a window over the positions before its last.
    positions = 1 if buffer.shape[1] == rows else state[f"{prefix}.conv_state"].shape[1] + 1
    return RowBuffer(buffer[0], positions=positions, counter=counter)


def _quantized(own: str, buffer: Tensor, counter: str) -> RowBuffer:
    """Rows that lie in blocks, as ``hybridge.cache.operations.quantized_rows`` has them."""
    if own.endswith("_scales"):
        return RowBuffer(buffer.transpose(2, 3)[0], places=2, counter=counter)
    by_row = key_rows(buffer) if own == "keys" else value_rows(buffer)
    return RowBuffer(by_row[0], places=3, counter=counter)


def _is_auxiliary(name: str) -> bool:
    own = name.rpartition(".")[2]
    return name in OWN or name.startswith("slots.") or own.endswith("_slots") or own.startswith("staged_")


def _layer(name: str) -> int:
    """The number in ``layers.3.keys``; -1 without one."""
    parts = name.split(".")
    return int(parts[1]) if parts[0] == "layers" else -1
