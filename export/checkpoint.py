"""Read a transformers checkpoint from a local folder: config.json and safetensors, never a pickle, never its own code."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging as transformers_logging

from hybridge.cache.errors import CheckpointError, UnsupportedModelError
from hybridge.cache.families import FAMILIES, describe, layer_types, text_config

PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
COPIED_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "generation_config.json",
    "chat_template.jinja",
    "chat_template.json",
)


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A loaded text model in float32, ready to run uncached, and the folder it came from."""

    folder: Path
    model: PreTrainedModel

    @property
    def config(self) -> Any:
        """The text model's config."""
        return text_config(self.model.config)

    @property
    def bos_id(self) -> int | None:
        bos = self._generation("bos_token_id")
        return int(bos) if isinstance(bos, int) else None

    @property
    def eos_ids(self) -> list[int]:
        """What ends a text: the generation config's ids, else the model config's."""
        eos = self._generation("eos_token_id")
        return [int(each) for each in eos] if isinstance(eos, list) else [] if eos is None else [int(eos)]

    def _generation(self, name: str) -> Any:
        value = getattr(self.model.generation_config, name, None)
        return value if value is not None else getattr(self.config, name, None)


def read_config(folder: Path) -> Any:
    """The config of the checkpoint in ``folder``, once it is known to be of a supported family.

    Raises CheckpointError where there is none, UnsupportedModelError where hybridge cannot run the model.
    """
    if not folder.is_dir():
        raise CheckpointError(
            f"{folder} is not a folder. Give a local checkpoint: a folder with config.json and *.safetensors."
        )
    path = folder / "config.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        model_type = content["model_type"]
    except FileNotFoundError:
        raise CheckpointError(f"{folder} has no config.json, so it is not a transformers checkpoint.") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} cannot be read as a transformers config ({error!r}).") from None
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:
        if model_type not in known_model_types():
            raise _unsupported(model_type, content) from None
        raise CheckpointError(f"{path} is not a valid {model_type!r} config: {_first_line(error)}") from None
    if text_config(config).model_type not in FAMILIES:
        raise _unsupported(model_type, {"layer_types": layer_types(text_config(config))})
    return config


def known_model_types() -> set[str]:
    """Top-level model types that a supported text model appears under."""
    return set(FAMILIES) | {name.removesuffix("_text") for name in FAMILIES}


def load_checkpoint(folder: Path) -> Checkpoint:
    """Config and weights of ``folder``, in float32.

    Raises CheckpointError where weights are missing, misshapen, damaged or not finite, and what ``read_config`` raises.
    """
    config = read_config(folder)
    if not any(folder.glob("*.safetensors")):
        pickled = [path.name for pattern in PICKLES for path in folder.glob(pattern)]
        hint = f"; {pickled[0]} is a pickle, which hybridge never loads: convert it to safetensors first" if pickled else ""
        raise CheckpointError(f"{folder} has no *.safetensors with the weights{hint}.")
    model, info = _load_weights(folder, config)
    _check_weights(folder, model, info)
    return Checkpoint(folder=folder, model=model.eval().requires_grad_(False))


def _load_weights(folder: Path, config: Any) -> tuple[PreTrainedModel, dict[str, Any]]:
    # Its log tells of reference kernels and of what it loads; what matters of that is checked below.
    transformers_logging.set_verbosity(transformers_logging.CRITICAL)
    transformers_logging.disable_progress_bar()
    try:
        model, info = AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=torch.float32,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # so that they are listed; they are refused below
        )
    except (SafetensorError, OSError, ValueError, RuntimeError, KeyError) as error:
        raise CheckpointError(f"the weights in {folder} cannot be read: {_first_line(error)}") from None
    return model, info


def _check_weights(folder: Path, model: PreTrainedModel, info: dict[str, Any]) -> None:
    if missing := sorted(info["missing_keys"]):
        raise CheckpointError(f"{folder} lacks {_some(missing)}; the checkpoint is incomplete.")
    if mismatched := sorted(info["mismatched_keys"]):
        name, found, expected = mismatched[0]
        raise CheckpointError(
            f"{name} in {folder} has shape {list(found)}, but config.json asks for {list(expected)}"
            + (f" (and {len(mismatched) - 1} more)." if len(mismatched) > 1 else ".")
        )
    if broken := [name for name, weight in model.named_parameters() if not bool(weight.isfinite().all())]:
        raise CheckpointError(f"{_some(broken)} in {folder} is not finite (NaN or infinity); the weights are damaged.")


def _unsupported(model_type: str, content: dict[str, Any]) -> UnsupportedModelError:
    types = content.get("layer_types") or content.get("text_config", {}).get("layer_types") or []
    layers = f" Its layers: {describe(types)}." if types else ""
    return UnsupportedModelError(
        f"model type {model_type!r} is not supported.{layers}\n"
        f"Supported model types: {', '.join(sorted(name.removesuffix('_text') for name in FAMILIES))}."
    )


def _some(names: list[str]) -> str:
    return names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
