"""Describe an artifact in its manifest, and write what no format changes: the tokenizer's files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import cast

from torch import nn

from hybridge.export.progress import ExportProgress
from hybridge.export.source.checkpoint import LoadedModel
from hybridge.export.weights import WithoutWeight
from hybridge.runtime.artifact.drafter import DrafterDescription
from hybridge.runtime.artifact.folder import file_entry
from hybridge.runtime.artifact.manifest import (
    FORMAT_VERSION,
    CalibrationEntry,
    LayerEntry,
    Manifest,
    MethodEntry,
    OnnxEntry,
    StockTokenizerEntry,
    StoredBits,
)
from hybridge.runtime.artifact.options import ExportOptions
from hybridge.runtime.artifact.pictures import PictureDescription
from hybridge.runtime.version import __version__


def write_tokenizer(loaded: LoadedModel, folder: Path, steps: ExportProgress) -> None:
    """Write the tokenizer's files into ``folder``, and warn of what is missing or was converted.

    Raises CheckpointError and OSError.
    """
    tokenizer = loaded.source.tokenizer
    tokenizer.write(folder)
    if tokenizer.note:
        steps.warn(tokenizer.note)
    if ignored := loaded.end_of_text.ignored:
        ends = f"Texts end with {loaded.eos_ids}." if loaded.eos_ids else "No token ends a text: stop it by --stop."
        steps.warn(
            f"{', '.join(ignored)} should end a text, say {loaded.source.folder}'s files, but the model has no such token "
            f"among its {loaded.vocab_size}: ignored. {ends}"
        )


@dataclass(frozen=True, kw_only=True)
class WeightFigures:
    """Figures of the weights for the manifest. size: bytes; bits: of those layers of the model that have fewer than 32."""

    size: int
    parameters: int
    bits: dict[str, StoredBits]

    @classmethod
    def of(cls, model: nn.Module, *drafters: nn.Module) -> WeightFigures:
        """Measure a model and its drafters."""
        layers = ((name, module) for name, module in model.named_modules() if isinstance(module, WithoutWeight))
        return cls(
            size=weight_bytes(model, *drafters),
            parameters=parameter_count(model, *drafters),
            bits={name: cast("StoredBits", layer.bits) for name, layer in layers if layer.bits < 32},
        )


def weight_bytes(*models: nn.Module) -> int:
    """Return the bytes of all weights in a program, shared ones counted once."""
    stored: dict[int, int] = {}
    for module in chain.from_iterable(model.modules() for model in models):
        bytes_of = getattr(module, "stored_bytes", lambda weight: weight.nbytes)
        stored |= {id(weight): bytes_of(weight) for weight in module.parameters(recurse=False)}
    return sum(stored.values())


def parameter_count(*models: nn.Module) -> int:
    """Return the number of parameters, packed or not, shared ones counted once."""
    counts: dict[int, int] = {}
    for module in chain.from_iterable(model.modules() for model in models):
        own = list(module.parameters(recurse=False))
        if isinstance(module, WithoutWeight):
            counts[id(own[0])] = module.count
            own = [weight for weight in own if weight is getattr(module, "bias", None)]
        counts |= {id(weight): weight.numel() for weight in own}
    return sum(counts.values())


def manifest_of(
    loaded: LoadedModel,
    options: ExportOptions,
    folder: Path,
    *,
    weights: WeightFigures,
    layers: list[LayerEntry],
    methods: dict[str, MethodEntry],
    libraries: Sequence[str],
    calibration: CalibrationEntry | None = None,
    onnx: OnnxEntry | None = None,
    drafter: DrafterDescription | None = None,
    pictures: PictureDescription | None = None,
    stock_tokenizer: StockTokenizerEntry | None = None,
) -> Manifest:
    """Return the manifest of the files in ``folder``, with the installed versions of ``libraries``."""
    return Manifest(
        format_version=FORMAT_VERSION,
        model_type=loaded.config.model_type,
        vocab_size=loaded.vocab_size,
        bos_id=loaded.bos_id,
        eos_ids=loaded.eos_ids,
        weight_bytes=weights.size,
        parameters=weights.parameters,
        options=options,
        layers=layers,
        methods=methods,
        files={path.name: file_entry(path) for path in sorted(folder.iterdir())},
        versions={name: version(name) for name in libraries} | {"hybridge": __version__},
        bits=weights.bits,
        calibration=calibration,
        onnx=onnx,
        source=loaded.source.origin,
        drafter=drafter,
        pictures=pictures,
        stock_tokenizer=stock_tokenizer,
    )
