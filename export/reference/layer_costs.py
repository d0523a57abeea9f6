"""Measure what the rounding of each weight costs by itself: the checkpoint with one weight rounded, beside it in float32."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from hybridge.cache.errors import UsageError
from hybridge.export.checks.comparison import divergence
from hybridge.export.output.progress import ExportProgress
from hybridge.export.quantization.bits import grid_of
from hybridge.export.quantization.quantize import rounder_of
from hybridge.export.reference.oracle import load_original, uncached
from hybridge.runtime.artifacts.manifest import Manifest


@dataclass(frozen=True, kw_only=True)
class LayerCost:
    """The mean KL divergence in nats from rounding one weight of ``elements`` numbers to ``bits``; the rest is float32."""

    name: str
    bits: int
    elements: int
    kl: float

    @property
    def kind(self) -> str:
        """Return the name without the numbers of layers."""
        return ".".join(part for part in self.name.split(".") if not part.isdigit())


def layer_costs(
    manifest: Manifest, checkpoint: str | Path, texts: Sequence[list[int]], steps: ExportProgress
) -> list[LayerCost]:
    """Measure each weight that the artifact has in fewer bits, on ``texts``; a forward over all texts for each weight.

    Weights are rounded as the artifact's options say without data, even where it was calibrated. What rounding activations
    costs is not part of it. Raises UsageError where the checkpoint is of another model, and for weights that were not rounded.
    """
    if manifest.options.quantize == "keep":
        raise UsageError("--layers measures what rounding costs, and this artifact has the bits of its file; leave it out.")
    model = load_original(checkpoint, manifest).model
    oracle, costs = uncached(model), []
    originals = [oracle(text) for text in texts]
    with steps.counted("Rounding one weight at a time") as notify:
        for done, (name, bits) in enumerate(manifest.bits.items()):
            with rounded_alone(model, name, bits, manifest) as elements:
                if elements:
                    total = sum(
                        float(divergence(want, oracle(text)).sum()) for text, want in zip(texts, originals, strict=True)
                    )
                    costs.append(LayerCost(name=name, bits=bits, elements=elements, kl=total / sum(map(len, texts))))
            notify(done + 1, len(manifest.bits))
    return costs


@contextmanager
def rounded_alone(model: PreTrainedModel, name: str, bits: int, manifest: Manifest) -> Iterator[int]:
    """Inside, the weight ``name`` is rounded; yields how many numbers it has, 0 for a head that is its embedding."""
    stored, as_rows, back = _weight(model, name)
    if name != _first_name(model, stored):
        yield 0
        return
    before = stored.detach().clone()
    rounded = rounder_of(manifest.options)(name, as_rows(before), grid_of(bits, manifest.options))
    with torch.no_grad():
        stored.copy_(back(rounded.numbers()))
        try:
            yield stored.numel()
        finally:
            stored.copy_(before)


def _weight(model: PreTrainedModel, name: str) -> tuple[Tensor, Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
    """A weight as the model has it, and functions from that to rows [N, K] and back."""
    parent, _, last = name.rpartition(".")
    owner: Any = model.get_submodule(parent)
    held = getattr(owner, last)
    if isinstance(held, Tensor):  # experts' [E, N, K], or [E, K, N]
        turned, shape = owner.is_transposed, held.shape
        if turned:
            return held, lambda w: w.transpose(1, 2).flatten(0, 1), lambda r: r.view(shape[0], shape[2], -1).transpose(1, 2)
        return held, lambda w: w.flatten(0, 1), lambda r: r.view(shape)
    return held.weight, lambda w: w, lambda r: r


def _first_name(model: PreTrainedModel, stored: Tensor) -> str:
    """The first name, of a layer or of experts' weights, that ``stored`` has in the model."""
    found: str = next(name for name, each in model.named_parameters() if each is stored)
    return found.removesuffix(".weight")
