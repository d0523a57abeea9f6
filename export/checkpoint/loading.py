"""Read a transformers checkpoint from a local folder: config.json and safetensors, never a pickle, never its own code."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PreTrainedModel,
)
from transformers.utils import logging as transformers_logging

import hybridge.export.checkpoint.glm5_next_text  # noqa: F401  lets transformers load a text model that it has no class for
from hybridge.cache.errors import CheckpointError, HybridgeError
from hybridge.cache.families import text_config
from hybridge.cache.families.checks import ADVICE
from hybridge.export.checkpoint.config_file import read_config
from hybridge.export.checkpoint.finite import CheckedReader, broken_weights
from hybridge.export.checkpoint.text_model import text_model
from hybridge.export.checkpoint.weight_files import loadable
from hybridge.export.pinned.transformers_loading import Reader, read_one_by_one
from hybridge.export.source.checkpoint_path import find_checkpoint
from hybridge.export.source.hub_cache import download_again
from hybridge.export.source.reading import check_files, first_line
from hybridge.export.tokenizer.end_of_text import EndOfText, end_of_text, named_ends
from hybridge.export.tokenizer.files import COPIED_FILES, TOKENIZER, TokenizerFiles, read_tokenizer


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A loaded text model in float32, ready to run uncached, and the folder it came from."""

    folder: Path
    model: PreTrainedModel

    @property
    def config(self) -> Any:
        """Return the text model's config."""
        return text_config(self.model.config)

    @property
    def vocab_size(self) -> int:
        """Return how many tokens have a logit; some models pad their embedding beyond them."""
        return logits_width(self.config)

    @property
    def bos_id(self) -> int | None:
        bos = self._generation("bos_token_id")
        return int(bos) if isinstance(bos, int) else None

    @cached_property
    def tokenizer(self) -> TokenizerFiles:
        """The tokenizer beside the weights. Raises CheckpointError where a file of it is damaged."""
        return read_tokenizer(self.folder)

    @cached_property
    def end_of_text(self) -> EndOfText:
        """All tokens that the files say end a text, else the model's own default. Raises what ``tokenizer`` does."""
        files, tokenizer = named_ends(self.folder, self.tokenizer.special), self.tokenizer.tokenizer
        found = end_of_text(files, tokenizer, self.vocab_size)
        default = end_of_text([self._generation("eos_token_id")], tokenizer, self.vocab_size)
        return found if found.ids else EndOfText(ids=default.ids, ignored=found.ignored)

    @property
    def eos_ids(self) -> list[int]:
        """The ids that end a text."""
        return self.end_of_text.ids

    def _generation(self, name: str) -> Any:
        value = getattr(self.model.generation_config, name, None)
        return value if value is not None else getattr(self.config, name, None)


def logits_width(config: Any) -> int:
    """Return how many logits a text model of ``config`` puts out."""
    width: int = getattr(config, "unpadded_vocab_size", None) or config.vocab_size
    return width


def load_checkpoint(checkpoint: str | Path, reader: Reader | None = None) -> Checkpoint:
    """Config and weights of what ``checkpoint`` names, in float32 but for what ``reader`` made of them as they were read.

    Raises CheckpointError where weights are missing, misshapen, damaged or not finite, and what ``read_config`` and ``reader``
    raise.
    """
    folder = find_checkpoint(checkpoint)
    config = read_config(folder)
    check_files(folder, (TOKENIZER, *COPIED_FILES))
    checked = CheckedReader(reader) if reader else None
    with loadable(folder) as place, read_one_by_one(checked) if checked else nullcontext():
        model, info = _load_weights(folder, place, config)
    _check_weights(folder, info, checked.broken if checked else broken_weights(model))
    return Checkpoint(folder=folder, model=text_model(model).eval().requires_grad_(False))


def _load_weights(folder: Path, place: Path, config: Any) -> tuple[PreTrainedModel, dict[str, Any]]:
    # Its log tells of reference kernels and of what it loads; what matters of that is checked below.
    transformers_logging.set_verbosity(transformers_logging.CRITICAL)
    transformers_logging.disable_progress_bar()
    try:
        model, info = _class_for(config).from_pretrained(
            place,
            config=config,
            dtype=torch.float32,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # so that they are listed; they are refused below
        )
    except HybridgeError:
        raise  # the reader's
    except Exception as error:  # whatever a damaged file or an impossible size makes transformers run into
        raise CheckpointError(_obstacle(folder, config, error)) from error
    return model, info


def _obstacle(folder: Path, config: Any, error: Exception) -> str:
    """Say why the weights of ``folder`` could not be read: a model that cannot be built, or the weights themselves."""
    reason = f"{type(error).__name__}: {first_line(error)}"
    try:
        with torch.device("meta"):
            _class_for(config).from_config(config)
    except Exception:  # whatever an impossible size makes transformers run into
        return f"{folder / 'config.json'} describes a model that transformers cannot build ({reason}). {ADVICE}"
    return f"the weights in {folder} cannot be read ({reason}); the checkpoint is damaged."


def _class_for(config: Any) -> Any:
    """transformers has a class for text alone for most multimodal models, and for a few only the whole."""
    return AutoModelForCausalLM if type(config) in MODEL_FOR_CAUSAL_LM_MAPPING else AutoModelForImageTextToText


def _check_weights(folder: Path, info: dict[str, Any], broken: list[str]) -> None:
    if missing := sorted(info["missing_keys"]):
        raise CheckpointError(f"{folder} lacks {_some(missing)}; the checkpoint is incomplete: {download_again(folder)}.")
    if mismatched := sorted(info["mismatched_keys"]):
        name, found, expected = mismatched[0]
        raise CheckpointError(
            f"{name} in {folder} has shape {list(found)}, but config.json asks for {list(expected)}"
            + (f" (and {len(mismatched) - 1} more)." if len(mismatched) > 1 else ".")
        )
    if broken:
        raise CheckpointError(f"{_some(broken)} in {folder} is not finite (NaN or infinity); the weights are damaged.")


def _some(names: list[str]) -> str:
    return names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")
