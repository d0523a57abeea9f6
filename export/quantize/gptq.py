"""Round a model's weights for the inputs of its layers, by GPTQ in one forward over calibration texts.

The batch has each text twice. One half goes through the exact layers, the other through layers that are rounded
already. When a linear layer is reached, it is rounded for both halves, and answers the second half with its rounded
weight, so that the layers after it make up for its error too. The forward is the model's own, so no family needs code
for it.

In GPTQ (Frantar, Ashkboos, Hoefler and Alistarh 2022, arXiv:2210.17323), columns that are not rounded yet make up for
those that are.

The error to minimize is that of a layer's output over its inputs: tr(E H Eᵀ) for an error E of the weight [N, K] and
the second moment H = XᵀX of the inputs X [T, K]. Once column j is rounded, the best change of the columns after it is
known in closed form from the upper Cholesky factor U of H⁻¹: -(error of column j / U[j, j]) · U[j, j + 1:].

Two additions lower the error by a third. Inputs X of rounded layers differ from the exact model's X̂, so the weight is
first replaced by the one whose outputs over X are nearest to the exact ones, W (X̂ᵀX + λ) (XᵀX + λ)⁻¹, as in GPTAQ (Li
et al. 2025, arXiv:2504.02692). And once all whole numbers are chosen, the scales of each row are solved for together,
by least squares.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GenerationConfig, PreTrainedModel

from hybridge.errors import ArtifactError, UsageError
from hybridge.export.operators.linear import LANES, PANEL_BYTES, Factors, unpack
from hybridge.export.operators.parts import one_thread
from hybridge.export.pinned.executorch import HEAD_BYTES, constant_offsets, read_header, read_program
from hybridge.export.quantize.bits import bits_of, check_columns, grid_of, linears, untied_linears
from hybridge.export.quantize.rounding import (
    best_scales,
    factors_of,
    fitting_grid,
    joined,
    keeping_grids,
    line_numbers,
    line_of,
    round_in_blocks,
    whole_numbers,
)
from hybridge.export.source.checkpoint import LoadedModel
from hybridge.export.source.text_model import decoder_of
from hybridge.export.texts import read_text, windows
from hybridge.export.weights import Grid, PackedExperts, PackedLinear, RoundedWeight, Rounder
from hybridge.runtime.artifact.manifest import CalibrationEntry, FileEntry, StoredEntry
from hybridge.runtime.artifact.options import ExportOptions

WINDOWS, LENGTH = 32, 512
"""Number of texts of a file, and tokens of each; twice as many lower the error of the embedded model by 2 %."""
OWN_LENGTH = 256
"""Tokens of each text that the model generates itself."""


@dataclass(frozen=True, kw_only=True)
class Calibrated:
    """A rounder that knows the inputs of layers. source, tokens: the calibration texts; names: the weights that it knows."""

    source: Literal["self", "text"]
    tokens: Tensor
    names: list[str]
    rounder: Rounder

    def entry(self, model: nn.Module) -> CalibrationEntry:
        """Return the manifest's entry for ``model`` with the packed weights."""
        data = self.tokens.to(torch.int64).contiguous().numpy().tobytes()
        return CalibrationEntry(
            source=self.source,
            tokens=self.tokens.numel(),
            sha256=hashlib.sha256(data).hexdigest(),
            stored=stored_entries(model, self.names),
        )


def calibrate(loaded: LoadedModel, options: ExportOptions, source: str | Path) -> Calibrated:
    """Round the linear layers that ``options`` round for the texts of ``source``; the model stays as it is.

    Raises what ``calibration_tokens`` raises, and UsageError if the group size does not divide a layer's columns.
    """
    tokens = calibration_tokens(loaded, source)
    grids = {}
    for name, layer in untied_linears(loaded.model):
        if (bits := bits_of(name, options)) < 32:
            check_columns(name, layer.weight, options.group_size)
            grids[name] = fitting_grid(layer.weight, grid_of(bits, options))
    rounded = round_on(loaded.model, tokens, grids)

    @keeping_grids
    def rounder(name: str, weight: Tensor, grid: Grid) -> RoundedWeight:
        return rounded[name] if name in rounded else round_in_blocks(name, weight, grid)

    source_kind: Literal["self", "text"] = "self" if source == "self" else "text"
    return Calibrated(source=source_kind, tokens=tokens, names=list(rounded), rounder=rounder)


@torch.no_grad()
def round_on(model: PreTrainedModel, tokens: Tensor, grids: Mapping[str, Grid]) -> dict[str, RoundedWeight]:
    """Return the rounded weights of the linear layers that ``grids`` names, as far as ``tokens`` [B, T] reach them."""
    calibration = _Calibration(grids, len(tokens))
    layers = {name: layer for name, layer in linears(model) if name in grids}
    handles = [layer.register_forward_hook(calibration.hook(name)) for name, layer in layers.items()]
    try:
        hidden = decoder_of(model)(input_ids=torch.cat([tokens, tokens]), use_cache=False).last_hidden_state
    finally:
        for handle in handles:
            handle.remove()
    for name, layer in layers.items():
        if layer is model.get_output_embeddings():
            calibration.round(name, layer, hidden)
    return calibration.rounded


class _Calibration:
    """The layers that were rounded so far, and the statistics of the last inputs, which several layers share."""

    def __init__(self, grids: Mapping[str, Grid], texts: int) -> None:
        self.grids, self.batch = grids, 2 * texts
        self.rounded: dict[str, RoundedWeight] = {}
        self._last: tuple[Tensor, LayerInputs] | None = None

    def hook(self, name: str) -> Any:
        """Return a forward hook that rounds the layer ``name`` and replaces its output for the second half of the batch."""

        def answer(layer: Any, inputs: tuple[Tensor], output: Tensor) -> Tensor | None:
            if len(inputs[0]) % self.batch:
                return None  # a part of the tokens, such as an expert's, which has no halves
            if name not in self.rounded:
                self.round(name, layer, inputs[0])
            exact, given = _halves(output)[0], _halves(inputs[0])[1]
            return torch.cat([exact, F.linear(given, self.rounded[name].numbers(), layer.bias)])

        return answer

    def round(self, name: str, layer: Any, inputs: Tensor) -> None:
        """Round the weight of a layer for its ``inputs`` of both halves."""
        if self._last is None or self._last[0] is not inputs:
            self._last = inputs, layer_inputs(*_halves(inputs))
        self.rounded[name] = round_by_gptq(layer.weight, self._last[1], self.grids[name])


def _halves(batch: Tensor) -> tuple[Tensor, Tensor]:
    """Return exact and rounded rows of [2 B, …]; some families fold other dimensions into the first, after the batch."""
    middle = len(batch) // 2
    return batch[:middle], batch[middle:]


def calibration_tokens(loaded: LoadedModel, source: str | Path) -> Tensor:
    """Return the tokens [B, T] to calibrate on: windows of the file ``source``, or texts that the model samples for "self".

    Raises UsageError for a file that cannot be read or is shorter than one window, and for a checkpoint without a
    tokenizer.
    """
    if source == "self":
        return sampled_tokens(loaded)
    tokenizer = loaded.source.tokenizer.core
    if tokenizer is None:
        raise UsageError(
            f"--calibrate {source} needs a tokenizer, and {loaded.source.folder} has none; --calibrate self needs none."
        )
    text = read_text(Path(source), "--calibrate")
    return torch.tensor(windows(tokenizer, text, LENGTH, WINDOWS, f"--calibrate {source}"))


@torch.no_grad()
def sampled_tokens(loaded: LoadedModel) -> Tensor:
    """Sample texts at temperature 1, each from another token, with a fixed seed."""
    options = GenerationConfig(
        do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=OWN_LENGTH - 1, min_new_tokens=OWN_LENGTH - 1
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        first = torch.randint(0, loaded.vocab_size, (WINDOWS, 1))
        # One token at a time, which transformers' own caches get right for every family.
        made: Tensor = loaded.model.generate(first, generation_config=options, attention_mask=torch.ones_like(first))
    return made


# Round one weight: GPTQ

DAMPING, RIDGE = 0.01, 0.03
"""Shares of the mean of H's diagonal that are added to it, for inputs that calibration has not seen. RIDGE is λ."""

COLUMNS, ROWS = 128, 1024
"""Columns whose errors are passed on together, and rows that are rounded together."""

LARGEST_MOVE = 2.0
"""Factor by which a scale may change once the whole numbers are chosen."""


@dataclass(frozen=True, kw_only=True)
class LayerInputs:
    """Statistics of a layer's inputs that rounding needs, all [K, K] float32.

    moment: H, damped; factor: U; transfer: moves a weight to where it makes up for the error of the inputs.
    """

    moment: Tensor
    factor: Tensor
    transfer: Tensor


def layer_inputs(exact: Tensor, given: Tensor) -> LayerInputs:
    """Describe the inputs that a layer is ``given`` [..., K] by rounded layers, where the exact model has ``exact``."""
    x, y = (each.detach().flatten(0, -2).float() for each in (given, exact))
    moment, cross = ((each.T @ x).double() / len(x) for each in (x, y))
    assert bool(moment.isfinite().all()), "the inputs of a layer are not finite"
    one = torch.eye(len(moment), dtype=moment.dtype) * moment.diagonal().mean().clamp(min=torch.finfo(torch.float32).tiny)
    transfer = torch.linalg.solve(moment + RIDGE * one, (cross + RIDGE * one).T).T
    return LayerInputs(moment=(moment + DAMPING * one).float(), factor=inverse_factor(moment, one), transfer=transfer.float())


def inverse_factor(moment: Tensor, one: Tensor) -> Tensor:
    """Return the float32 U [K, K] of H⁻¹ = Uᵀ U, with as much of ``one`` added to the second moment H as it takes."""
    damping = DAMPING
    while True:
        factor, failed = torch.linalg.cholesky_ex(moment + damping * one)
        if not failed:
            upper, failed = torch.linalg.cholesky_ex(torch.cholesky_inverse(factor), upper=True)
            if not failed:
                found: Tensor = upper.float()
                return found
        damping *= 10


def round_by_gptq(weight: Tensor, inputs: LayerInputs, grid: Grid) -> RoundedWeight:
    """Round a weight [N, K] for the inputs of its layer."""
    if grid.minima:
        return _round_in_superblocks(weight, inputs, grid)
    parts = []
    with one_thread():
        for rows in weight.split(ROWS):
            target = rows.detach().float() @ inputs.transfer
            quanta, scales = _round(target.clone(), inputs.factor, grid)
            factors = Factors(_refitted(target, quanta, scales, inputs.moment, grid))
            parts.append(RoundedWeight(quanta=quanta.to(torch.int8), factors=factors, bits=grid.bits))
    return joined(parts)


def _round_in_superblocks(weight: Tensor, inputs: LayerInputs, grid: Grid) -> RoundedWeight:
    """Round to groups with minima, whose factors are chosen for all groups before the first column: they share superblocks."""
    diagonal, parts = inputs.factor.diagonal(), []
    with one_thread():
        for rows in weight.split(ROWS):
            left = rows.detach().float() @ inputs.transfer
            factors = factors_of(left, grid, diagonal.square().reciprocal())
            scales, minima = (each.squeeze(-1).repeat_interleave(grid.group, dim=1) for each in line_of(factors))
            quanta = torch.empty_like(left)
            for start in range(0, left.shape[1], COLUMNS):
                end, errors = min(start + COLUMNS, left.shape[1]), []
                for j in range(start, end):
                    quanta[:, j] = line_numbers(left[:, j], scales[:, j], minima[:, j], grid.bits)
                    errors.append((left[:, j] - quanta[:, j] * scales[:, j] - minima[:, j]) / diagonal[j])
                    left[:, j + 1 : end] -= errors[-1][:, None] * inputs.factor[j, j + 1 : end]
                left[:, end:] -= torch.stack(errors, 1) @ inputs.factor[start:end, end:]
            parts.append(
                RoundedWeight(quanta=(quanta - (1 << (grid.bits - 1))).to(torch.int8), factors=factors, bits=grid.bits)
            )
    return joined(parts)


def _refitted(target: Tensor, quanta: Tensor, scales: Tensor, moment: Tensor, grid: Grid) -> Tensor:
    """Return the scales [N, K / G] of whole numbers [N, K] that are nearest to ``target`` over inputs with ``moment``."""
    groups = quanta.unflatten(1, (-1, grid.group))
    wanted = (target @ moment).unflatten(1, (-1, grid.group)).mul(groups).sum(-1)
    products = [
        (groups[:, g] @ moment[g * grid.group : (g + 1) * grid.group]).unflatten(1, (-1, grid.group)).mul(groups).sum(-1)
        for g in range(groups.shape[1])
    ]
    system = torch.stack(products, 1)  # [N, K / G, K / G]
    size = system.diagonal(dim1=1, dim2=2).mean(-1).clamp(min=torch.finfo(torch.float32).tiny)
    system += 1e-6 * size[:, None, None] * torch.eye(groups.shape[1])
    solved = torch.linalg.solve(system, wanted).to(grid.scale).float()
    ratio = solved / scales
    return torch.where((ratio > 1 / LARGEST_MOVE) & (ratio < LARGEST_MOVE), solved, scales)


def _round(weight: Tensor, factor: Tensor, grid: Grid) -> tuple[Tensor, Tensor]:
    """Round rows [N, K], which change; whole numbers [N, K] and scales [N, K / group]."""
    N, K = weight.shape
    quanta, scales = torch.empty_like(weight), weight.new_empty(N, K // grid.group)
    block = max(grid.group, COLUMNS // grid.group * grid.group)
    for start in range(0, K, block):
        end = min(start + block, K)
        errors = weight.new_empty(N, end - start)
        for j in range(start, end):
            if j % grid.group == 0:
                step = _scale(weight[:, j : j + grid.group], factor.diagonal()[j : j + grid.group], grid)
                scales[:, j // grid.group] = step
            quanta[:, j] = whole_numbers(weight[:, j], step, grid)
            error = (weight[:, j] - quanta[:, j] * step) / factor[j, j]
            weight[:, j + 1 : end] -= error[:, None] * factor[j, j + 1 : end]
            errors[:, j - start] = error
        weight[:, end:] -= errors @ factor[start:end, end:]
    return quanta, scales


def _scale(group: Tensor, factor: Tensor, grid: Grid) -> Tensor:
    """Return scales [N] of a group of columns [N, G]; 1 / U[j, j]² is what an error of column j costs in the end."""
    if grid.bits == 8:
        return (group.abs().amax(1) / grid.high).to(grid.scale).float().clamp(min=torch.finfo(grid.scale).smallest_normal)
    return best_scales(group, grid, factor.square().reciprocal())[:, 0]


# Read the rounded weights of a calibrated artifact back from its program. GPTQ's sums depend on the processor, so no
# other machine makes the same numbers again, and a validation must compare the artifact with the eager model of the
# same numbers.

Chunks = Mapping[str, bytes]


def stored_entries(model: nn.Module, names: Iterable[str]) -> dict[str, StoredEntry]:
    """Return the hashes by which the packed weights ``names`` of ``model`` are found again in the program."""
    return {name: _entry(model.get_submodule(name)) for name in names}


def stored_rounder(program: Path, stored: Mapping[str, StoredEntry]) -> Rounder:
    """Return a rounder that reads ``stored`` weights from ``program`` and rounds all others without data.

    Raises ArtifactError if the program lacks one of them.
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
    """Return the bytes of the wanted constants of a program, by their hashes."""
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
"""Most bytes of padding between a constant and the next one."""


def _unpacked(parts: Sequence[bytes | None], rows: int, grid: Grid) -> RoundedWeight:
    """Unpack the panels of a weight with ``rows``: its numbers, scales, minima and superscales."""
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
    """Return panels [N / 16, ..., last]."""
    return torch.frombuffer(bytearray(data), dtype=kind).view(-(-rows // LANES), -1, last)
