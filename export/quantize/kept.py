"""Keep the weights of a GGUF file as they are: the blocks of its tensors become the panels of our kernels, bit for bit."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path

import torch
from torch import Tensor, nn

from hybridge.cache.errors import ArtifactError
from hybridge.export.layers import CHUNK, Grid, PackedExperts, PackedLinear, RoundedWeight, Rounder, WithoutWeight
from hybridge.export.operators.linear import LANES, PANEL_BYTES, Factors, unpack
from hybridge.export.pinned.executorch import HEAD_BYTES, constant_offsets, read_header, read_program
from hybridge.export.pinned.transformers import origin_of
from hybridge.export.quantize.bits import GROUPS
from hybridge.export.quantize.rounding import fitting_grid, round_in_blocks, round_to_nearest
from hybridge.runtime.artifacts.manifest import FileEntry, StoredEntry


def keep_blocks(name: str, weight: Tensor, grid: Grid) -> RoundedWeight:
    """Return a weight [N, K] with the bits that its file has; rounded to 8 where that cannot be, with a note that says why.

    The bits are taken only where they stand for the very numbers of ``weight``: an adapter may have changed those.
    """
    origin = origin_of(weight)
    if origin is None:
        return _rounded(name, weight, "no tensors of the file stand for it alone")
    stored: RoundedWeight | None = origin.blocks()
    if stored is None:
        kinds = " and ".join(origin.without_kernels())
        return _rounded(name, weight, f"there are no kernels for {kinds}" if kinds else "its rows lie otherwise in the file")
    if not _stands_for(stored, weight):
        return _rounded(name, weight, "its numbers are no longer those of the file")
    if stored.bits == 8 and bool((stored.quanta == -128).any()):  # which has no positive twin, as products need
        return _exact(weight)
    return stored


def notes(model: nn.Module) -> Iterator[str]:
    """Yield a sentence for each reason for which weights of ``model`` were rounded all the same."""
    names: dict[str, list[str]] = {}
    for name, module in model.named_modules():
        if isinstance(module, WithoutWeight) and module.note:
            names.setdefault(module.note, []).append(name)
    for note, found in names.items():
        more = f" and {len(found) - 1} other weights" if len(found) > 1 else ""
        yield f"--quantize keep rounds {found[0]}{more} to 8 bits: {note}."


def _stands_for(stored: RoundedWeight, weight: Tensor) -> bool:
    if stored.quanta.shape != weight.shape:
        return False
    step = max(1, CHUNK // weight.shape[1])
    spans = (slice(first, first + step) for first in range(0, len(weight), step))
    return all(stored.mapped(itemgetter(span)).numbers().equal(weight[span].float()) for span in spans)


def _rounded(name: str, weight: Tensor, note: str) -> RoundedWeight:
    group = next((each for each in GROUPS if weight.shape[1] % each == 0), None)
    if group is None:
        return _exact(weight)
    rounded = round_to_nearest(name, weight, Grid(bits=8, group=group, signed_scales=True))
    return RoundedWeight(quanta=rounded.quanta, factors=rounded.factors, bits=8, note=note)


def _exact(weight: Tensor) -> RoundedWeight:
    return RoundedWeight(quanta=weight.detach().float(), factors=Factors(), bits=32)


# The rounded weights that an artifact holds: found in its program by their hashes, and taken as a rounding of the
# checkpoint.
#
# GPTQ's sums depend on the processor, so no other machine makes the same numbers again. A validation, which
# compares an artifact
# with the eager model of the same numbers, reads them where they are.


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
