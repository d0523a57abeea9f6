"""The rounded weights that an artifact holds: found in its program by their hashes, and taken as a rounding of the checkpoint.

GPTQ's sums depend on the processor, so no other machine makes the same numbers again. A validation, which compares an artifact
with the eager model of the same numbers, reads them where they are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from hybridge.cache.errors import ArtifactError
from hybridge.export.layers.packed_layers import PackedExperts, PackedLinear
from hybridge.export.layers.rounded_weight import Grid, RoundedWeight, Rounder
from hybridge.export.pinned.program_format import HEAD_BYTES, constant_offsets, read_header, read_program
from hybridge.export.quantization.scale_search import round_by_search
from hybridge.runtime.artifacts.manifest import FileEntry, StoredEntry
from hybridge.runtime.kernels.panels import LANES, Factors, unpack

Chunks = Mapping[str, bytes]


def stored_entries(model: nn.Module, names: Iterable[str]) -> dict[str, StoredEntry]:
    """Return what identifies the packed weights ``names`` of ``model`` in the program that will hold them."""
    return {name: _entry(model.get_submodule(name)) for name in names}


def stored_rounder(program: Path, stored: Mapping[str, StoredEntry]) -> Rounder:
    """Return a rounder that answers with the numbers in ``program``, and rounds what is not ``stored`` without data.

    Raises ArtifactError where the program does not hold what ``stored`` says.
    """
    wanted = [part for entry in stored.values() for part in (entry.numbers, entry.scales)]
    chunks = _find(program, wanted)

    def rounder(name: str, weight: Tensor, grid: Grid) -> RoundedWeight:
        if name not in stored:
            return round_by_search(name, weight, grid)
        return _unpacked(chunks[stored[name].numbers.sha256], chunks[stored[name].scales.sha256], weight, grid)

    return rounder


def _entry(layer: nn.Module) -> StoredEntry:
    assert isinstance(layer, PackedLinear | PackedExperts)
    assert layer.scales is not None
    return StoredEntry(numbers=_hashed(layer.packed), scales=_hashed(layer.scales))


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


def _unpacked(numbers: bytes, scales: bytes, weight: Tensor, grid: Grid) -> RoundedWeight:
    """Take panels apart to the rounding of ``weight`` [N, K]."""
    rows, columns = weight.shape
    panels, step = -(-rows // LANES), 8 if grid.bits == 4 else 4
    packed = torch.frombuffer(bytearray(numbers), dtype=torch.uint8 if grid.bits == 4 else torch.int8)
    quanta = unpack(packed.view(panels, columns // step, 64), rows)
    halves = torch.frombuffer(bytearray(scales), dtype=torch.float16).view(panels, columns // grid.group, LANES)
    return RoundedWeight(
        quanta=quanta, factors=Factors(halves.transpose(1, 2).reshape(panels * LANES, -1)[:rows].float()), bits=grid.bits
    )
