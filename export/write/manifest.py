"""Describe an artifact: its tokenizer files, the bytes of its weights, and its manifest, whatever its format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import cast

from torch import nn

import hybridge
from hybridge.export.layers.packed_layers import WithoutWeight
from hybridge.export.progress import ExportProgress
from hybridge.export.source.checkpoint import Checkpoint
from hybridge.runtime.artifacts.artifact import file_entry
from hybridge.runtime.artifacts.manifest import (
    FORMAT_VERSION,
    CalibrationEntry,
    LayerEntry,
    Manifest,
    MethodEntry,
    OnnxEntry,
    StoredBits,
)
from hybridge.runtime.artifacts.options import DrafterDescription, ExportOptions


def write_tokenizer(checkpoint: Checkpoint, folder: Path, steps: ExportProgress) -> None:
    """Put the checkpoint's tokenizer into ``folder``, and say what was made or is missing. Raises CheckpointError, OSError."""
    checkpoint.tokenizer.write(folder)
    if checkpoint.tokenizer.note:
        steps.warn(checkpoint.tokenizer.note)
    if ignored := checkpoint.end_of_text.ignored:
        ends = f"Texts end with {checkpoint.eos_ids}." if checkpoint.eos_ids else "No token ends a text: stop it by --stop."
        steps.warn(
            f"{', '.join(ignored)} should end a text, say {checkpoint.folder}'s files, but the model has no such token among "
            f"its {checkpoint.vocab_size}: ignored. {ends}"
        )


@dataclass(frozen=True, kw_only=True)
class Weights:
    """What the manifest says of weights; size: bytes; bits: of the model's with fewer than 32, by the name of their layer."""

    size: int
    parameters: int
    bits: dict[str, StoredBits]

    @classmethod
    def of(cls, model: nn.Module, *drafters: nn.Module) -> Weights:
        """Look at a model and what drafts for it, before the adaptation takes the model apart."""
        layers = ((name, module) for name, module in model.named_modules() if isinstance(module, WithoutWeight))
        return cls(
            size=weight_bytes(model, *drafters),
            parameters=parameter_count(model, *drafters),
            bits={name: cast("StoredBits", layer.bits) for name, layer in layers if layer.bits < 32},
        )


def weight_bytes(*models: nn.Module) -> int:
    """Return the bytes of all weights as a program has them, those that are used twice counted once."""
    stored: dict[int, int] = {}
    for module in chain.from_iterable(model.modules() for model in models):
        bytes_of = getattr(module, "stored_bytes", lambda weight: weight.nbytes)
        stored |= {id(weight): bytes_of(weight) for weight in module.parameters(recurse=False)}
    return sum(stored.values())


def parameter_count(*models: nn.Module) -> int:
    """Return how many numbers all weights are, whatever they are kept as, those that are used twice counted once."""
    counts: dict[int, int] = {}
    for module in chain.from_iterable(model.modules() for model in models):
        own = list(module.parameters(recurse=False))
        if isinstance(module, WithoutWeight):
            counts[id(own[0])] = module.count
            own = [weight for weight in own if weight is getattr(module, "bias", None)]
        counts |= {id(weight): weight.numel() for weight in own}
    return sum(counts.values())


def manifest_of(
    checkpoint: Checkpoint,
    options: ExportOptions,
    folder: Path,
    *,
    weights: Weights,
    layers: list[LayerEntry],
    methods: dict[str, MethodEntry],
    libraries: Sequence[str],
    calibration: CalibrationEntry | None = None,
    onnx: OnnxEntry | None = None,
    drafter: DrafterDescription | None = None,
) -> Manifest:
    """Return the manifest of the files in ``folder``, whatever their format, with the installed versions of ``libraries``."""
    return Manifest(
        format_version=FORMAT_VERSION,
        model_type=checkpoint.config.model_type,
        vocab_size=checkpoint.vocab_size,
        bos_id=checkpoint.bos_id,
        eos_ids=checkpoint.eos_ids,
        weight_bytes=weights.size,
        parameters=weights.parameters,
        options=options,
        layers=layers,
        methods=methods,
        files={path.name: file_entry(path) for path in sorted(folder.iterdir())},
        versions={name: version(name) for name in libraries} | {"hybridge": hybridge.__version__},
        bits=weights.bits,
        calibration=calibration,
        onnx=onnx,
        source=checkpoint.source,
        drafter=drafter,
    )
