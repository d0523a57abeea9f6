"""Round the weights of a model by what its layers are given: GPTQ, layer after layer in one forward over a calibration text.

The batch has each text twice. One half goes through the exact layers. When a linear layer is reached, the other half comes from
layers that are rounded already: the layer is rounded for both, and answers that half by its rounded weight, so that the layers
behind it make up for its error too. The forward is the model's own, and no family needs code for it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from hybridge.export.checkpoint.decoder import decoder_of
from hybridge.export.checkpoint.loading import Checkpoint
from hybridge.export.layers.rounded_weight import Grid, RoundedWeight, Rounder
from hybridge.export.quantization.asymmetric import round_in_blocks
from hybridge.export.quantization.bits import bits_of, grid_of
from hybridge.export.quantization.calibration_text import calibration_tokens
from hybridge.export.quantization.gptq import LayerInputs, layer_inputs, round_by_gptq
from hybridge.export.quantization.quantizable import check_columns, linears, untied_linears
from hybridge.export.quantization.rounding import fitting_grid, keeping_grids
from hybridge.export.quantization.stored_weights import stored_entries
from hybridge.runtime.artifacts.manifest import CalibrationEntry
from hybridge.runtime.artifacts.options import ExportOptions


@dataclass(frozen=True, kw_only=True)
class Calibrated:
    """A rounder that knows what layers are given, and what it knows it from; names: the weights that it rounded by that."""

    source: Literal["self", "text"]
    tokens: Tensor
    names: list[str]
    rounder: Rounder

    def entry(self, model: nn.Module) -> CalibrationEntry:
        """Return what the manifest says of it, for ``model`` with the packed weights."""
        data = self.tokens.to(torch.int64).contiguous().numpy().tobytes()
        return CalibrationEntry(
            source=self.source,
            tokens=self.tokens.numel(),
            sha256=hashlib.sha256(data).hexdigest(),
            stored=stored_entries(model, self.names),
        )


def calibrate(checkpoint: Checkpoint, options: ExportOptions, source: str | Path) -> Calibrated:
    """Round the linear layers of ``checkpoint`` that ``options`` round for texts of ``source``; the model stays as it is.

    Raises what ``calibration_tokens`` raises, and UsageError where the group size does not divide a layer's columns.
    """
    tokens = calibration_tokens(checkpoint, source)
    grids = {}
    for name, layer in untied_linears(checkpoint.model):
        if (bits := bits_of(name, options)) < 32:
            check_columns(name, layer.weight, options.group_size)
            grids[name] = fitting_grid(layer.weight, grid_of(bits, options))
    rounded = round_on(checkpoint.model, tokens, grids)

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
    """What was rounded so far, and the inputs that came last: several layers are given the same.

    The first half of a batch goes through exact layers, the second half is the same text through rounded ones.
    """

    def __init__(self, grids: Mapping[str, Grid], texts: int) -> None:
        self.grids, self.batch = grids, 2 * texts
        self.rounded: dict[str, RoundedWeight] = {}
        self._last: tuple[Tensor, LayerInputs] | None = None

    def hook(self, name: str) -> Any:
        """Return a forward hook that rounds the layer ``name`` and answers in its place for the second half of the batch."""

        def answer(layer: Any, inputs: tuple[Tensor], output: Tensor) -> Tensor | None:
            if len(inputs[0]) % self.batch:
                return None  # some tokens alone, which have no halves
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
    """Exact and rounded rows of [2 B, …]; some families fold other dimensions into the first, behind the batch."""
    middle = len(batch) // 2
    return batch[:middle], batch[middle:]
