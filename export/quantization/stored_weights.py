"""The rounded weights that an artifact holds: found in its program by their hashes, and taken as a rounding of the checkpoint.

GPTQ's sums depend on the processor, so no other machine makes the same numbers again. A validation, which compares an artifact
with the eager model of the same numbers, reads them where they are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from hybridge.cache.errors import ArtifactError
from hybridge.export.layers.packed_layers import PackedExperts, PackedLinear
from hybridge.export.layers.rounded_weight import Grid, RoundedWeight, Rounder
from hybridge.export.operators.panels import LANES, PANEL_BYTES, Factors, unpack
from hybridge.export.pinned.program_format import HEAD_BYTES, constant_offsets, read_header, read_program
from hybridge.export.quantization.asymmetric import round_in_blocks
from hybridge.export.quantization.rounding import fitting_grid
from hybridge.runtime.artifacts.manifest import FileEntry, StoredEntry

Chunks = Mapping[str, bytes]


def stored_entries(model: nn.Module, names: Iterable[str]) -> dict[str, StoredEntry]:
    """Return what identifies the packed weights ``names`` of ``model`` in the program that will hold them."""
    return {name: _entry(model.get_submodule(name)) for name in names}


def stored_rounder(program: Path, stored: Mapping[str, StoredEntry]) -> Rounder:
    """Return a rounder that answers with the numbers in ``program``, and rounds what is not ``stored`` without data.

    Raises ArtifactError where the program does not hold what ``stored`` says.
    """
    wanted = [part for entry in stored.values() for part in _parts(entry) if part is not None]
    chunks = _find(program, wanted)

    def rounder(name: str, weight: Tensor, grid: Grid) -> RoundedWeight:
        if name not in stored:
            return round_in_blocks(name, weight, grid)
        parts = [None if part is None else chunks[part.sha256] for part in _parts(stored[name])]
        return _unpacked(parts, len(weight), fitting_grid(weight, grid))

    return rounder


def _entry(layer: nn.Module) -> StoredEntry:
    assert isinstance(layer, PackedLinear | PackedExperts)
    scales, minima, superscales = (None if part is None else _hashed(part) for part in layer.factors[:3])
    assert scales is not None
    return StoredEntry(numbers=_hashed(layer.packed), scales=scales, minima=minima, superscales=superscales)


def _parts(entry: StoredEntry) -> tuple[FileEntry | None, ...]:
    return entry.numbers, entry.scales, entry.minima, entry.superscales


def _hashed(values: Tensor) -> FileEntry:
    data = values.detach().contiguous().view(torch.uint8).numpy().tobytes()
    return FileEntry(sha256=hashlib.sha256(data).hexdigest(), size=len(data))


def _find(program: Path, wanted: list[FileEntry]) -> Chunks:
    """The bytes of a program's constants by their hashes, of those that are wanted."""
    sizes: dict[int, set[str]] = {}
    for each in wanted:
        sizes.setdefault(each.size, set()).add(each.sha256)
    found = {}
    with program.open("rb") as file:
        header = read_header(file.read(HEAD_BYTES))
        if header is None:
            raise ArtifactError(f"{program} has no header of segments; export the model again.")
        file.seek(0)
        offsets = constant_offsets(read_program(file.read(header.program_size)), header)
        for start, room in offsets:
            for size, hashes in sizes.items():
                if size <= room < size + LARGEST_PADDING:
                    file.seek(start)
                    data = file.read(size)
                    if (sha256 := hashlib.sha256(data).hexdigest()) in hashes:
                        found[sha256] = data
    if missing := {each.sha256 for each in wanted} - set(found):
        raise ArtifactError(f"{program} lacks {len(missing)} of the rounded weights that its manifest names; export it again.")
    return found


LARGEST_PADDING = 4096
"""Bytes between a constant and the next one."""


def _unpacked(parts: Sequence[bytes | None], rows: int, grid: Grid) -> RoundedWeight:
    """Take the panels of numbers, scales, minima and superscales apart to the rounding of a weight with ``rows``."""
    numbers, *factors = parts
    assert numbers is not None
    whole = torch.float16 if factors[1] is None else torch.int8
    panels = [
        None if data is None else _tensor(data, kind, rows, LANES)
        for data, kind in zip(factors, (whole, whole, torch.float16), strict=True)
    ]
    packed = _tensor(numbers, torch.int8 if grid.bits == 8 else torch.uint8, rows, PANEL_BYTES[grid.bits])
    return RoundedWeight(quanta=unpack(packed, rows), factors=Factors(*panels).in_rows(rows), bits=grid.bits)


def _tensor(data: bytes, kind: torch.dtype, rows: int, last: int) -> Tensor:
    """Panels [N / 16, ..., last]."""
    return torch.frombuffer(bytearray(data), dtype=kind).view(-(-rows // LANES), -1, last)
