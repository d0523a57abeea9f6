"""Resolve the checkpoint that a user names into one object, and load its weights.

``resolve_checkpoint`` asks everything there is to ask of the files, once: options, writers and checks read its answer,
the ``CheckpointSource``. ``load_checkpoint`` reads config and safetensors or GGUF, never a pickle and never a
checkpoint's own code.
"""

from __future__ import annotations

import copy
import json
import shutil
import weakref
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch
from torch import Tensor
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    GenerationConfig,
    PreTrainedModel,
)
from transformers.utils import logging as transformers_logging

from hybridge.cache.families import FAMILIES, text_config
from hybridge.cache.families.family import ADVICE
from hybridge.errors import CheckpointError, HybridgeError, UnsupportedModelError, UsageError
from hybridge.export.pinned.transformers import (
    Reader,
    UnfitWeightsError,
    model_class,
    read_one_by_one,
    refuse_unfit_weights,
    remember_origins,
    weight_of,
)
from hybridge.export.source.config import read_config
from hybridge.export.source.files import check_files, download_again, first_line, ignored_parts
from hybridge.export.source.gguf.checkpoint import gguf_weights, write_tokenizer_files
from hybridge.export.source.gguf.file import GgufFile, open_gguf
from hybridge.export.source.gguf.projectors import PROCESSOR, WholeModel, processor, whole_weights
from hybridge.export.source.locate import find_checkpoint
from hybridge.export.source.quantization import Quantization
from hybridge.export.source.text_model import check_adapters, merge_adapters, text_model
from hybridge.export.source.tokenizer import (
    COPIED_FILES,
    TOKENIZER,
    EndOfText,
    TokenizerFiles,
    end_of_text,
    named_ends,
    read_tokenizer,
)
from hybridge.export.source.weight_files import loadable, stored_tensors, unread_tensors
from hybridge.runtime.binding.tokenizer import Tokenizer
from hybridge.runtime.pack.gguf import hub_origin


@dataclass(frozen=True, kw_only=True, eq=False)
class CheckpointSource:
    """A checkpoint that was found, recognized and checked, before any weight is read.

    Args:
        path: the folder or the GGUF file that the user means.
        folder: the folder with config.json and the tokenizer's files, which is ``path`` itself, or a temporary one that stands
            for a GGUF file as long as this object lives.
        config: of the whole model, as transformers reads it.
        quantization: of the weights in a folder.
        gguf: the opened file.
        mmproj: the opened file of the encoder of pictures beside it, in llama.cpp's format too.
        left_out: why a file beside it, which is named as such an encoder is, is not its encoder.
        adapters: folders of LoRA adapters, merged in this order.
        tokenizer_folder: a folder whose tokenizer and chat template replace the checkpoint's own.
    """

    path: Path
    folder: Path
    config: Any
    quantization: Quantization | None = None
    gguf: GgufFile | None = None
    mmproj: GgufFile | None = None
    left_out: str = ""
    adapters: tuple[Path, ...] = ()
    tokenizer_folder: Path | None = None

    @property
    def text_config(self) -> Any:
        """Return the config of the text model, which is ``config`` itself for a model of text alone."""
        return text_config(self.config)

    @property
    def origin(self) -> str | None:
        """Return the model and commit on the hub, or None for a checkpoint from elsewhere."""
        return hub_origin(self.path)

    @property
    def is_untried(self) -> bool:
        """Return whether the family has no entry and runs by its plain attention alone."""
        return self.text_config.model_type not in FAMILIES

    @property
    def gguf_types(self) -> list[str]:
        """Return GGML's names of the quantized types in a GGUF file; none for a folder."""
        tensors = self.gguf.tensors.values() if self.gguf else ()
        return sorted({tensor.kind_name for tensor in tensors if not tensor.is_float})

    @property
    def reader(self) -> str:
        """Return the words for what turns the files into the numbers of the weights, which a validation takes on trust."""
        if self.quantization is not None:
            return f"hybridge's own reader of {self.quantization.method.name}, as in the export"
        if self.gguf_types:
            return "the gguf package's reader of blocks, as in the export"
        return "safetensors" if self.gguf is None else "the gguf package"

    @cached_property
    def tokenizer(self) -> TokenizerFiles:
        """The tokenizer of the checkpoint, or the one that replaces it.

        Raises:
            CheckpointError: one of its files is damaged.
            UsageError: the replacement has a larger vocabulary than the model.
        """
        if self.tokenizer_folder:
            found = read_tokenizer(self.tokenizer_folder)
            size, vocabulary = found.tokenizer.get_vocab_size() if found.tokenizer else 0, self.text_config.vocab_size
            if size > vocabulary:
                raise UsageError(
                    f"the tokenizer in {self.tokenizer_folder} has {size} tokens, but the model {vocabulary}: it is another "
                    "model's. Give the one that the model was trained with."
                )
            return found
        if self.gguf is None:
            return read_tokenizer(self.folder)
        note = write_tokenizer_files(self.gguf, self.folder)
        found = read_tokenizer(self.folder, verbatim=True)
        return replace(found, note=note) if note else found

    def warnings(self, *, pictures: bool = False) -> Iterator[str]:
        """Yield a sentence for each part of the checkpoint that an export leaves out or that is untested.

        pictures: its encoder of pictures is exported.
        """
        yield from ignored_parts(self.path)
        if self.left_out:
            yield f"Pictures are left out: {self.left_out}"
        if self.text_config is not self.config and not pictures:
            yield f"{self.path} is a multimodal model: its text model is exported, pictures and sounds are left out."
        others = {"sounds": "audio_config", "videos": "video_token_id"} if pictures else {}
        if left := " and ".join(kind for kind, field in others.items() if getattr(self.config, field, None) is not None):
            yield f"{self.path} takes {left}, too: text and pictures are exported, these are left out."
        if self.is_untried:
            yield (
                f"nobody has tried {self.config.model_type!r} models. This one is of attention alone: the artifact is "
                "validated, and kept only if it is right."
            )


def resolve_checkpoint(
    checkpoint: str | Path,
    adapters: Sequence[str | Path] = (),
    tokenizer: str | Path | None = None,
    mmproj: str | Path | None = None,
) -> CheckpointSource:
    """Find and check the checkpoint that a user names, with what goes with it; read no weight.

    Args:
        checkpoint: a folder, a GGUF file, or the id of a model on the hub, which is downloaded if it is not in the
            cache.
        adapters: folders of LoRA adapters to merge into it.
        tokenizer: a folder whose tokenizer and chat template replace the checkpoint's own.
        mmproj: the file with a GGUF file's encoder of pictures; if left out, one beside it that fits, if there is any.

    Raises:
        UsageError: the name is empty, an adapter's folder has none, or ``mmproj`` is given for a folder.
        CheckpointError: the checkpoint is not there, damaged, something else (NotACheckpointError), or not supported
            (UnsupportedModelError).
    """
    path = find_checkpoint(checkpoint)
    merged, own_tokenizer = tuple(map(Path, adapters)), Path(tokenizer) if tokenizer is not None else None
    gguf = open_gguf(path) if path.is_file() else None
    path = path if gguf is None else gguf.path
    if mmproj is not None and gguf is None:
        raise UsageError(f"--mmproj is for a GGUF file, and {path} is a folder, which has its encoder of pictures inside.")
    projector, left_out = None, ""
    folder = path if gguf is None else Path(mkdtemp(prefix="hybridge-gguf-"))
    try:
        if gguf is not None:
            whole = WholeModel.of(gguf, None if mmproj is None else Path(mmproj))
            projector, left_out = whole.projector, whole.left_out
            if projector is not None:
                (folder / PROCESSOR).write_text(json.dumps(processor(projector)), encoding="utf-8")
            (folder / "config.json").write_text(json.dumps(whole.config), encoding="utf-8")
        config, quantization = read_config(folder)
        check_adapters(merged)
        check_files(own_tokenizer or folder, (TOKENIZER, *COPIED_FILES))
        source = CheckpointSource(
            path=path,
            folder=folder,
            config=config,
            quantization=quantization,
            gguf=gguf,
            mmproj=projector,
            left_out=left_out,
            adapters=merged,
            tokenizer_folder=own_tokenizer,
        )
    except BaseException:
        if gguf is not None:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    if gguf is not None:
        weakref.finalize(source, shutil.rmtree, folder, ignore_errors=True)
    return source


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """The text model of a checkpoint with its weights, ready to run uncached.

    whole: the model that it was taken out of, which shares its decoder; None if it is the whole itself.
    """

    source: CheckpointSource
    model: PreTrainedModel
    whole: PreTrainedModel | None = None

    @property
    def config(self) -> Any:
        """Return the text model's config."""
        return text_config(self.model.config)

    @property
    def vocab_size(self) -> int:
        """Return the number of tokens that have a logit; some models pad their embedding beyond them."""
        return logits_width(self.config)

    @property
    def core_tokenizer(self) -> Tokenizer | None:
        """Return the core's tokenizer of these files, None if there are none."""
        return self.source.tokenizer.core

    @property
    def bos_id(self) -> int | None:
        """Return the token that begins a text, or None if the model has none."""
        bos = self._generation("bos_token_id")
        return int(bos) if isinstance(bos, int) else None

    @property
    def eos_ids(self) -> list[int]:
        """Return the tokens that end a text."""
        return self.end_of_text.ids

    @cached_property
    def end_of_text(self) -> EndOfText:
        """All tokens that the files name as ends of a text, or the model's own default. Raises what ``tokenizer`` raises."""
        files = self.source.tokenizer
        found = end_of_text(named_ends(self.source.folder, files.special), files.tokenizer, self.vocab_size)
        default = end_of_text([self._generation("eos_token_id")], files.tokenizer, self.vocab_size)
        return found if found.ids else EndOfText(ids=default.ids, ignored=found.ignored)

    def _generation(self, name: str) -> Any:
        value = getattr(self.model.generation_config, name, None)
        return value if value is not None else getattr(self.config, name, None)


def logits_width(config: Any) -> int:
    """Return the number of logits that a text model of ``config`` puts out."""
    width: int = getattr(config, "unpadded_vocab_size", None) or config.vocab_size
    return width


def load_checkpoint(
    checkpoint: CheckpointSource | str | Path, reader: Reader | None = None, *, pictures: bool = False
) -> LoadedModel:
    """Load the weights of a checkpoint in float32, with its adapters merged.

    Args:
        checkpoint: what ``resolve_checkpoint`` returned, or a name for it to resolve.
        reader: works on each weight as it is read, such as a packer, which then need not be float32. It is not asked if
            there are adapters, because they are merged into whole weights.
        pictures: load the encoder of pictures as well; otherwise only if transformers has no class without it.

    Raises:
        CheckpointError: weights are missing, misshapen, damaged or not finite. Also what ``merge_adapters`` and
            ``reader`` raise.
    """
    source = checkpoint if isinstance(checkpoint, CheckpointSource) else resolve_checkpoint(checkpoint)
    checked = CheckedReader(reader) if reader and not source.adapters else None
    with _weights(source, pictures) as weights, remember_origins(), read_one_by_one(checked) if checked else nullcontext():
        model = _load_weights(source, weights, pictures)
    broken = [name for name, each in model.named_parameters() if not is_finite(each)] if checked is None else checked.broken
    if broken:
        raise CheckpointError(f"{_some(broken)} in {source.path} is not finite (NaN or infinity); the weights are damaged.")
    text = merge_adapters(text_model(model).eval().requires_grad_(False), source.adapters)
    return LoadedModel(source=source, model=text, whole=None if text is model else model.eval().requires_grad_(False))


@contextmanager
def _weights(source: CheckpointSource, pictures: bool) -> Iterator[dict[str, Any]]:
    """Yield transformers' arguments for the weights: a folder, or tensors that are decoded as it reads them."""
    if source.gguf is not None:
        weights = gguf_weights(source.gguf)
        if pictures and source.mmproj is not None:
            weights = whole_weights(source.mmproj, weights)
        yield {"pretrained_model_name_or_path": None, "state_dict": weights}
    elif source.quantization is None:
        with loadable(source.folder) as place:
            yield {"pretrained_model_name_or_path": place}
    else:
        with stored_tensors(source.folder) as stored:
            yield {"pretrained_model_name_or_path": None, "state_dict": stored.dequantized(source.quantization)}


def _load_weights(source: CheckpointSource, weights: dict[str, Any], pictures: bool) -> PreTrainedModel:
    # Its log is about reference kernels and what it loads; what matters there is an error.
    transformers_logging.set_verbosity(transformers_logging.CRITICAL)
    transformers_logging.disable_progress_bar()
    with_text_alone = source.mmproj is not None and not pictures
    config = copy.deepcopy(
        source.text_config if with_text_alone else source.config
    )  # loading changes it, and a source may be loaded twice
    if pictures and getattr(config, "audio_config", None) is not None:
        config.audio_config = None  # nothing exports it, and it takes memory
    folder = source.path
    model: PreTrainedModel
    try:
        kind, config = model_class(_class_for(config, pictures), config)
        with refuse_unfit_weights():
            model, info = kind.from_pretrained(
                **weights,
                config=config,
                dtype=torch.float32,
                use_safetensors=True,
                local_files_only=True,
                trust_remote_code=False,
                output_loading_info=True,
            )
    except HybridgeError:
        raise  # the reader's, or a quantization's
    except UnfitWeightsError as unfit:
        raise CheckpointError(_unfit(folder, unfit)) from None
    except Exception as error:  # whatever a damaged file or an impossible size makes transformers run into
        raise CheckpointError(_obstacle(folder, config, pictures, error)) from error
    assert not info["missing_keys"], "they are refused before: see refuse_unfit_weights()"
    if unread := unread_tensors(model, info["unexpected_keys"], lambda name: _is_zero(source, weights, name)):
        raise UnsupportedModelError(
            f"{_some(unread)} in {folder} is a tensor of a layer of the model, which nobody reads: the layer would compute "
            "something else than its publisher's. Take the checkpoint in a form without it."
        )
    generation = folder / "generation_config.json"
    if "state_dict" in weights and generation.is_file():  # transformers has looked into no folder
        try:
            model.generation_config = GenerationConfig.from_pretrained(folder, local_files_only=True)
        except Exception as error:  # transformers' config classes raise whatever their checks ran into
            raise CheckpointError(f"{generation} cannot be read ({first_line(error)}).") from None
    return model


def _class_for(config: Any, pictures: bool) -> Any:
    """Return the auto class to load: for a few multimodal models transformers has no class for text alone."""
    return AutoModelForCausalLM if not pictures and type(config) in MODEL_FOR_CAUSAL_LM_MAPPING else AutoModelForImageTextToText


def _obstacle(folder: Path, config: Any, pictures: bool, error: Exception) -> str:
    """Explain why loading failed: the model cannot be built, or its weights cannot be read."""
    reason = f"{type(error).__name__}: {first_line(error)}"
    try:
        with torch.device("meta"):
            _class_for(config, pictures).from_config(config)
    except Exception:  # whatever an impossible size makes transformers run into
        return f"{folder / 'config.json'} describes a model that transformers cannot build ({reason}). {ADVICE}"
    return f"the weights in {folder} cannot be read ({reason}); the checkpoint is damaged."


def _unfit(folder: Path, unfit: UnfitWeightsError) -> str:
    """Name the weights that are missing, or else those of another shape."""
    if unfit.missing:
        return f"{folder} lacks {_some(unfit.missing)}; the checkpoint is incomplete: {download_again(folder)}."
    (name, found, expected), *others = unfit.misshapen
    more = f" (and {len(others)} more)" if others else ""
    return f"{name} in {folder} has shape {list(found)}, but config.json asks for {list(expected)}{more}."


def _some(names: list[str]) -> str:
    return names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")


def _is_zero(source: CheckpointSource, weights: dict[str, Any], name: str) -> bool:
    """Return whether the tensor that transformers calls ``name`` is there and all zeros. A file's name may have a prefix."""
    with ExitStack() as opened:
        tensors = weights.get("state_dict") or opened.enter_context(stored_tensors(source.folder)).tensors
        ends = [each for own, each in tensors.items() if own.endswith(name) or name.endswith(own)]
        return len(ends) == 1 and not bool(ends[0][...].any())


# Check that all weights are finite: of a loaded model, or of each weight before a reader works on it


class CheckedReader:
    """Pass finite weights on to another reader. broken: the names of the others."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.broken: list[str] = []

    def keeps(self, model: PreTrainedModel, name: str) -> bool:
        """Return whether the other reader wants the weight in the type of its file."""
        return self.reader.keeps(model, name)

    def loaded(self, model: PreTrainedModel, name: str) -> None:
        """Pass a weight on, unless it is broken, or did not fit and is not there."""
        weight = weight_of(model, name)
        if weight.is_meta:
            return
        if is_finite(weight):
            self.reader.loaded(model, name)
        else:
            self.broken.append(name)


def is_finite(weight: Tensor) -> bool:
    """Return whether all numbers of a weight are finite: the smallest and the largest are, which are NaN if any is."""
    return not weight.numel() or all(map(torch.isfinite, weight.detach().aminmax()))
