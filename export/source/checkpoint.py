"""Read a transformers checkpoint from a local folder: config.json and safetensors, never a pickle, never its own code."""

from __future__ import annotations

import shutil
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    GenerationConfig,
    PreTrainedModel,
)
from transformers.utils import logging as transformers_logging

import hybridge.export.source.config  # noqa: F401  lets transformers load a text model that it has no class for
from hybridge.cache.errors import CheckpointError, HybridgeError, UsageError
from hybridge.cache.families import text_config
from hybridge.cache.families.family import ADVICE
from hybridge.export.pinned.transformers import (
    Reader,
    UnfitWeightsError,
    model_class,
    read_one_by_one,
    refuse_unfit_weights,
    remember_origins,
    weight_of,
)
from hybridge.export.source.adapters import check_adapters, merge_adapters
from hybridge.export.source.config import config_in, text_model
from hybridge.export.source.files import check_files, download_again, first_line, origin_of, read_object
from hybridge.export.source.gguf.checkpoint import is_gguf, weights_of, write_folder
from hybridge.export.source.gguf.file import open_gguf
from hybridge.export.source.locate import Named, find_checkpoint, named
from hybridge.export.source.quantization_methods import quantization_of
from hybridge.export.source.tokenizer import (
    COPIED_FILES,
    TOKENIZER,
    EndOfText,
    TokenizerFiles,
    end_of_text,
    named_ends,
    read_tokenizer,
)
from hybridge.export.source.weight_files import loadable, stored_tensors


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A loaded text model in float32, ready to run uncached, and the folder it came from.

    own_tokenizer: a folder whose tokenizer is taken instead; note: what people should be told of the tokenizer; source: model
    and commit on the hub; of_gguf: the folder stands for a GGUF file. Such a folder is there as long as the model.
    """

    folder: Path
    model: PreTrainedModel
    own_tokenizer: Path | None = None
    note: str = ""
    source: str | None = None
    of_gguf: bool = False

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
        """The tokenizer beside the weights, or the one that was given.

        Raises CheckpointError where a file of it is damaged, UsageError where it is of a larger vocabulary.
        """
        made = self.of_gguf and self.own_tokenizer is None
        found = read_tokenizer(self.own_tokenizer or self.folder, verbatim=made)
        if self.own_tokenizer and found.tokenizer and found.tokenizer.get_vocab_size() > self.config.vocab_size:
            raise UsageError(
                f"the tokenizer in {self.own_tokenizer} has {found.tokenizer.get_vocab_size()} tokens, but the model "
                f"{self.config.vocab_size}: it is another model's. Give the one that the model was trained with."
            )
        return replace(found, note=self.note) if self.note else found

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


def load_checkpoint(checkpoint: str | Path | Named, reader: Reader | None = None) -> LoadedModel:
    """Config and weights of what ``checkpoint`` names, with its adapters merged.

    In float32 but for what ``reader`` made of them as they were read; adapters are merged into whole weights, so that a reader
    is not asked where there are any.
    Raises CheckpointError where weights are missing, misshapen, damaged or not finite, and what ``read_config``,
    ``merge_adapters`` and ``reader`` raise.
    """
    wanted = named(checkpoint)
    place = find_checkpoint(wanted.checkpoint)
    check_adapters(wanted.adapters)
    checked = CheckedReader(reader) if reader and not wanted.adapters else None
    with ExitStack() as unless_loaded:
        folder, note = place, ""
        if is_gguf(place):
            folder = Path(mkdtemp(prefix="hybridge-gguf-"))
            unless_loaded.callback(shutil.rmtree, folder, ignore_errors=True)
            note = write_folder(place, folder, tokenizer=wanted.tokenizer is None)
        config = config_in(folder)
        check_files(wanted.tokenizer or folder, (TOKENIZER, *COPIED_FILES))
        with _weights(place) as where, remember_origins(), read_one_by_one(checked) if checked else nullcontext():
            model = _load_weights(place, where, config)
        _check_finite(place, checked.broken if checked else broken_weights(model))
        text = merge_adapters(text_model(model).eval().requires_grad_(False), wanted.adapters)
        weakref.finalize(text, unless_loaded.pop_all().close)
    return LoadedModel(
        folder=folder, model=text, own_tokenizer=wanted.tokenizer, note=note, source=origin_of(place), of_gguf=is_gguf(place)
    )


@contextmanager
def _weights(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield where transformers finds the weights: in a folder, or in tensors that are decoded as it reads them."""
    if is_gguf(folder):
        yield {"pretrained_model_name_or_path": None, "state_dict": weights_of(open_gguf(folder))}
        return
    quantized = quantization_of(folder, read_object(folder / "config.json"))
    if quantized is None:
        with loadable(folder) as place:
            yield {"pretrained_model_name_or_path": place}
        return
    with stored_tensors(folder) as stored:
        weights = stored.dequantized(quantized.method, quantized.quantization)
        yield {"pretrained_model_name_or_path": None, "state_dict": weights}


def _load_weights(folder: Path, where: dict[str, Any], config: Any) -> PreTrainedModel:
    # Its log tells of reference kernels and of what it loads; what matters of that is an error.
    transformers_logging.set_verbosity(transformers_logging.CRITICAL)
    transformers_logging.disable_progress_bar()
    model: PreTrainedModel
    try:
        kind, config = model_class(_class_for(config), config)
        with refuse_unfit_weights():
            model, info = kind.from_pretrained(
                **where,
                config=config,
                dtype=torch.float32,
                use_safetensors=True,
                local_files_only=True,
                trust_remote_code=False,
                output_loading_info=True,
            )
    except HybridgeError:
        raise  # the reader's, or those of a form
    except UnfitWeightsError as unfit:
        raise CheckpointError(_unfit(folder, unfit)) from None
    except Exception as error:  # whatever a damaged file or an impossible size makes transformers run into
        raise CheckpointError(_obstacle(folder, config, error)) from error
    assert not info["missing_keys"], "they are refused before: see refuse_unfit_weights()"
    if "state_dict" in where and (folder / "generation_config.json").is_file():  # transformers has looked into no folder
        model.generation_config = _generation_config(folder)
    return model


def _generation_config(folder: Path) -> GenerationConfig:
    try:
        return GenerationConfig.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # transformers' config classes raise whatever their checks ran into
        raise CheckpointError(f"{folder / 'generation_config.json'} cannot be read ({first_line(error)}).") from None


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


def _unfit(folder: Path, unfit: UnfitWeightsError) -> str:
    """Say which weights are missing, or else which have another shape."""
    if unfit.missing:
        return f"{folder} lacks {_some(unfit.missing)}; the checkpoint is incomplete: {download_again(folder)}."
    (name, found, expected), *others = unfit.misshapen
    more = f" (and {len(others)} more)" if others else ""
    return f"{name} in {folder} has shape {list(found)}, but config.json asks for {list(expected)}{more}."


def _check_finite(folder: Path, broken: list[str]) -> None:
    if broken:
        raise CheckpointError(f"{_some(broken)} in {folder} is not finite (NaN or infinity); the weights are damaged.")


def _some(names: list[str]) -> str:
    return names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")


# Whether all weights are numbers: asked of a model that has been read, or of each weight before it is worked on.


CHUNK = 1 << 20
"""Elements that are looked at at once: what is found of each takes memory."""


class CheckedReader:
    """Tells another reader of weights that are finite. broken: the names of the others."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.broken: list[str] = []

    def keeps(self, model: PreTrainedModel, name: str) -> bool:
        """Ask the other."""
        return self.reader.keeps(model, name)

    def loaded(self, model: PreTrainedModel, name: str) -> None:
        """Tell the other, unless the weight is broken, or did not fit and is not there."""
        weight = weight_of(model, name)
        if weight.is_meta:
            return
        if is_finite(weight):
            self.reader.loaded(model, name)
        else:
            self.broken.append(name)


def broken_weights(model: nn.Module) -> list[str]:
    """Return the names of the weights that hold NaN or infinity."""
    return [name for name, weight in model.named_parameters() if not is_finite(weight)]


def is_finite(weight: Tensor) -> bool:
    """Return whether all numbers of a weight are finite."""
    return all(bool(part.isfinite().all()) for part in weight.detach().flatten().split(CHUNK))
