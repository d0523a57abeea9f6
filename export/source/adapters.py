"""LoRA adapters as peft saves them, merged into the model that they were trained for."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor
from transformers import PreTrainedModel

from hybridge.cache.errors import CheckpointError, UnsupportedModelError, UsageError
from hybridge.export.source.files import ADAPTER, base_model, check_files, first_line, read_object

WEIGHTS = "adapter_model.safetensors"
PREFIX = "base_model.model."
PARTS = (".lora_", ".modules_to_save.", ".base_layer.", ".token_adapter.")
"""What peft puts between the name of a module and that of its own weight in it."""


def merge_adapters(model: PreTrainedModel, folders: Iterable[Path]) -> PreTrainedModel:
    """Return ``model`` with the adapters in ``folders`` merged into its weights, one after the other; in place.

    Raises UsageError where peft is not installed or a folder has no adapter, UnsupportedModelError for another kind than LoRA,
    CheckpointError for one that is damaged or was trained for another model.
    """
    for folder in folders:
        model = _merged(model, folder)
    return model.eval().requires_grad_(False)


def check_adapters(folders: Iterable[Path]) -> None:
    """Raises what ``merge_adapters`` raises for folders that have no LoRA adapter, before any work is done."""
    for folder in folders:
        _read_config(folder)


@torch.no_grad()
def _merged(model: PreTrainedModel, folder: Path) -> PreTrainedModel:
    peft = _peft()
    weights = _read_weights(folder)
    options = {field.name for field in fields(peft.LoraConfig)} - {"auto_mapping", "inference_mode"}
    config = {name: value for name, value in _read_config(folder).items() if name in options}
    _check_names(model, weights, folder)
    if not config.get("target_parameters"):
        # Their names in full, which are those of the text model: the config's may be patterns for the whole of a model.
        modules = {name.partition(".lora_")[0] for name in weights if ".lora_" in name}
        config |= {"target_modules": sorted(modules), "layers_to_transform": None, "exclude_modules": None}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of peft, about what it was asked to do
            adapted = peft.PeftModel(model, peft.LoraConfig(**config, inference_mode=True))
            found = peft.set_peft_model_state_dict(adapted, {f"{PREFIX}{name}": each for name, each in weights.items()})
            unused = [name for name in found.unexpected_keys if "lora" in name or "modules_to_save" in name]
            if not unused:
                merged: PreTrainedModel = adapted.merge_and_unload(safe_merge=True)
    except (ValueError, RuntimeError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(_other_model(folder, model, first_line(error))) from error
    if unused:
        raise CheckpointError(_other_model(folder, model, f"nothing takes {unused[0]}"))
    return merged


def _peft() -> Any:
    try:
        import peft
    except ImportError:
        raise UsageError("--adapter needs the package peft: pip install 'hybridge[checkpoints]'.") from None
    return peft


def _read_config(folder: Path) -> dict[str, Any]:
    """Return the adapter's config. Raises UsageError where there is none, UnsupportedModelError for another kind than LoRA."""
    if not (folder / ADAPTER).is_file():
        raise UsageError(f"{folder} has no {ADAPTER}, so it is no adapter; give the folder that peft saved.")
    config = read_object(folder / ADAPTER)
    if (kind := config.get("peft_type")) != "LORA":
        raise UnsupportedModelError(
            f"{folder} is an adapter of the kind {kind!r}; hybridge merges LORA (with DoRA and rsLoRA)."
        )
    return config


def _read_weights(folder: Path) -> dict[str, Tensor]:
    """Return the adapter's weights in float32, by their names in the text model."""
    path = folder / WEIGHTS
    if not path.exists() and not path.is_symlink():
        others = [each.name for each in sorted(folder.glob("adapter_model*"))]
        pickles = f" ({others[0]} is a pickle or a part, which hybridge does not load)" if others else ""
        raise CheckpointError(f"{folder} has no {WEIGHTS}{pickles}; save the adapter again with peft.")
    check_files(folder, [WEIGHTS])
    try:
        stored = safetensors.torch.load_file(path)
    except (OSError, safetensors.SafetensorError) as error:
        raise CheckpointError(f"{path} is damaged or only a part of it is there ({first_line(error)}).") from None
    if broken := [name for name, each in stored.items() if not bool(each.isfinite().all())]:
        raise CheckpointError(f"{broken[0]} in {path} is not finite (NaN or infinity); the adapter is damaged.")
    return {name.removeprefix(PREFIX).replace(".language_model.", "."): each.float() for name, each in stored.items()}


def _check_names(model: PreTrainedModel, weights: Mapping[str, Tensor], folder: Path) -> None:
    """Raises CheckpointError where the adapter changes a module that the model does not have."""
    modules = {name for name, _ in model.named_modules()}
    for name in weights:
        module = min((name.partition(part)[0] for part in PARTS), key=len)
        module = module if module != name else name.rpartition(".")[0]
        if module not in modules:
            raise CheckpointError(_other_model(folder, model, f"it changes {module}, which this model does not have"))


def _other_model(folder: Path, model: PreTrainedModel, reason: str) -> str:
    base = base_model(folder)
    return (
        f"{folder} is an adapter for {base or 'another model'}, and cannot be merged into this "
        f"{model.config.model_type!r} model ({reason}). Give the checkpoint that it was trained on."
    )
