"""Read a checkpoint's config.json, and refuse a model that hybridge cannot run before any weight is read.

A family without an entry of its own is accepted if its layers attend as transformers' own attention does. For any
other, the error lists the parts of the model that hybridge has a state for, and those that it lacks.
"""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    MODEL_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
)

from hybridge.cache.families import ATTENTION_ALONE, FAMILIES, SIGNATURES, family_of, plan, text_config
from hybridge.cache.families.family import ADVICE, summarize
from hybridge.errors import CheckpointError, UnsupportedModelError
from hybridge.export.pinned.transformers import attention_interface
from hybridge.export.source.files import EXPECTED, check_files, first_line, read_object, text_part
from hybridge.export.source.quantization import Quantization
from hybridge.export.source.quantization_methods import quantization_of
from hybridge.export.source.text_model import decoder_of, empty_model
from hybridge.limits import MOST_LAYERS, MOST_OF_A_SIZE, MOST_TOKENS

PUBLISHED = {"NemotronH_Nano_Omni_Reasoning_V3": "nemotron_h_omni"}
"""Model types of checkpoints that were published with code of their own, and transformers' name for each."""


def read_config(folder: Path) -> tuple[Any, Quantization | None]:
    """Return the config in ``folder``, and the quantization of the weights if there is any.

    The config has no quantization of its own left, because weights are dequantized before transformers sees them.

    Raises:
        CheckpointError: config.json is damaged.
        UnsupportedModelError: hybridge cannot run the model or read its quantization.
    """
    path = folder / "config.json"
    check_files(folder, [path.name])
    content = read_object(path)
    check_sizes(path, content)
    model_type = content.get("model_type")
    if not isinstance(model_type, str):
        raise CheckpointError(
            f'{path} cannot be read as a transformers config: it has no model_type, such as "model_type": "qwen3". {EXPECTED}'
        )
    known = not {model_type, str(text_part(content).get("model_type"))}.isdisjoint(known_model_types())
    if not known and not _has_plain_attention(folder):
        raise _unsupported(folder, model_type, content)
    quantization = quantization_of(folder, content)
    try:
        if renamed := PUBLISHED.get(model_type):
            kind = CONFIG_MAPPING[renamed]
            config: Any = kind.from_dict(kind.get_config_dict(folder, local_files_only=True)[0] | {"model_type": renamed})
        else:
            config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        if not known:
            setattr(text_config(config), ATTENTION_ALONE, True)
        _tie_as_told(config, content)
        types = plan(text_config(config))
        _with_head_dim(text_config(config))
        for part in (config, text_config(config)):
            for name in ("quantization_config", "compression_config"):
                vars(part).pop(name, None)
    except CheckpointError:
        raise
    except Exception as error:  # transformers' config classes raise whatever their checks ran into
        raise CheckpointError(f"{path} is not a valid {model_type!r} config: {first_line(error)}") from None
    if family_of(text_config(config)) is None:
        raise _unsupported(folder, model_type, {"layer_types": types})
    return config, quantization


MOST = 2**31 - 1
"""Largest whole number of any field of a config."""
SIZE = re.compile(r".*(size|dim|heads|kernel|rank|groups|experts)")


def check_sizes(path: Path, content: Mapping[str, Any]) -> None:
    """Raise CheckpointError for a number in config.json that no model has, before a model of that size is laid out.

    Smaller wrong numbers, those below 1 among them, are refused where a layer is built.
    """
    for name, value in content.items():
        if isinstance(value, dict):
            check_sizes(path, value)
        most = MOST_LAYERS if name.endswith("layers") else MOST_OF_A_SIZE if SIZE.fullmatch(name) else MOST
        most = MOST_TOKENS if "vocab" in name else most
        if type(value) is int and abs(value) > most and not name.endswith("max_length"):
            raise CheckpointError(f"{path} says {name} = {str(value)[:30]}, expected at most {most}. {ADVICE}")


def _tie_as_told(config: Any, content: dict[str, Any]) -> None:
    """Tie the heads of a multimodal model and of its text model alike: many a config.json says so in one place alone.

    If the two places disagree, the head is tied. A checkpoint with a head of its own keeps it, as in transformers.
    """
    told = {part.get("tie_word_embeddings") for part in (content, text_part(content))} & {True, False}
    if told and text_config(config) is not config:
        for part in (config, text_config(config)):
            part.tie_word_embeddings = True in told


def _with_head_dim(config: Any) -> Any:
    """Fill in a ``head_dim`` of None and return the text config: some classes' layers need it, though their config does not."""
    width, heads = getattr(config, "hidden_size", None), getattr(config, "num_attention_heads", None)
    # Not by getattr: a config whose layers differ refuses to say one value for all.
    if vars(config).get("head_dim", 0) is None and isinstance(width, int) and isinstance(heads, int) and heads > 0:
        config.head_dim = width // heads
    return config


def known_model_types() -> set[str]:
    """Return the top-level model types of the families that have an entry, multimodal ones included."""
    return set(FAMILIES) | {name.removesuffix("_text") for name in FAMILIES}


# Families without an entry, but with plain attention

STATES = (nn.Conv1d, nn.Conv2d)
"""Modules of token mixers that keep another state than keys and values."""

UNKNOWN = (
    "attention_chunk_size",
    "kv_lora_rank",
    "q_lora_rank",
    "num_kv_shared_layers",
    "cross_attention_layers",
    "index_topk",
)
"""Options of attention that reads or keeps something else than keys and values by position."""


def is_plain_attention(config: Any) -> bool:
    """Return whether each decoder layer of a text config's model has one attention through the interface and no other state.

    This cannot see everything, so an artifact of such a model is always validated against the uncached one.
    """
    if type(config) not in MODEL_MAPPING or any(getattr(config, name, None) for name in UNKNOWN):
        return False
    if not set(getattr(config, "layer_types", None) or ()) <= {"full_attention", "sliding_attention"}:
        return False
    try:
        layers = list(decoder_of(empty_model(config)).layers)
    except Exception:  # an untested config may make transformers raise anything
        return False
    return len(layers) == config.num_hidden_layers and all(map(_attends_once, layers))


def _has_plain_attention(folder: Path) -> bool:
    config = _try_config(folder)
    loadable = {*MODEL_FOR_CAUSAL_LM_MAPPING, *MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING}
    return type(config) in loadable and is_plain_attention(_with_head_dim(text_config(config)))


def _try_config(folder: Path) -> Any:
    """Return the config in ``folder``, or None if transformers cannot read it without code of the folder."""
    try:
        return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception:  # transformers' config classes raise whatever their checks ran into
        return None


def _attends_once(layer: nn.Module) -> bool:
    kinds = [type(module) for module in layer.modules() if hasattr(module, "layer_idx")]
    ours = [kind for kind in kinds if kind.__module__.startswith("transformers.")]
    mixers = [kind for kind in ours if attention_interface in inspect.getsource(kind)]
    return len(mixers) == 1 and not any(isinstance(module, STATES) for module in layer.modules())


# Unsupported families: name their parts, so that whoever wants one knows what is missing.


def what_is_missing(config: Any) -> str | None:
    """Return a sentence or two on the parts of the model that ``config`` describes, or None if it cannot be built.

    Builds the model on the meta device, and runs no code of the checkpoint.
    """
    try:
        with torch.device("meta"):
            layers = list(decoder_of(AutoModelForCausalLM.from_config(config, trust_remote_code=False)).layers)
    except Exception:  # an untested config may make transformers raise anything
        return None
    known, unknown = _parts(layers)
    if not known:
        return None
    found = f"Parts of it that hybridge has: {_counted(known)}."
    if unknown:
        return f"{found} Layers without any: {_counted(unknown)}; their state has to be written first."
    return f"{found} What is missing is an entry in the two tables of families: docs/adding-a-family.md shows how."


def _unsupported(folder: Path, model_type: str, content: dict[str, Any]) -> UnsupportedModelError:
    types = content.get("layer_types") or text_part(content).get("layer_types")
    layers = f" Its layers: {summarize([str(each) for each in types])}." if isinstance(types, list) else ""
    config = _try_config(folder)
    missing: str | None = None
    if config is not None:
        has_text_model = {type(config), type(text_config(config))} & set(MODEL_FOR_CAUSAL_LM_MAPPING)
        missing = "It has no text model: transformers has no causal language model for it."
        missing = what_is_missing(text_config(config)) if has_text_model else missing
    return UnsupportedModelError(
        f"model type {model_type!r} is not supported.{layers}\n"
        + (f"{missing}\n" if missing else "")
        + f"Supported model types: {', '.join(sorted(name.removesuffix('_text') for name in FAMILIES))}."
    )


def _parts(layers: Iterable[nn.Module]) -> tuple[Counter[str], Counter[str]]:
    """Count the known mixers by kind, and the layers without any by class."""
    known: Counter[str] = Counter()
    unknown: Counter[str] = Counter()
    for layer in layers:
        mixers = [name for module in layer.modules() if (name := _recognize(module))]
        known.update(mixers)
        if not mixers:
            unknown[type(layer).__name__] += 1
    return known, unknown


def _recognize(module: nn.Module) -> str | None:
    names = {name for name, _ in module.named_children()}
    names |= {name for name, _ in module.named_parameters(recurse=False)}
    names |= {name for name, _ in module.named_buffers(recurse=False)}
    return next((kind for kind, signature in SIGNATURES if signature <= names), None)


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{count} × {name}" for name, count in counts.most_common())
