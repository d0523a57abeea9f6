"""Read a checkpoint's config.json, and refuse what hybridge cannot run before any weight is read."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING, AutoConfig

from hybridge.cache.errors import CheckpointError, UnsupportedModelError
from hybridge.cache.families import ATTENTION_ALONE, FAMILIES, family_of, plan, text_config
from hybridge.cache.families.family import summarize
from hybridge.export.checkpoint.forms.recognize import quantization_of
from hybridge.export.checkpoint.gguf.checkpoint import is_gguf, write_folder
from hybridge.export.checkpoint.plain_attention import is_plain_attention
from hybridge.export.checkpoint.recognize import what_is_missing
from hybridge.export.source.checkpoint_path import find_checkpoint
from hybridge.export.source.folder_kinds import EXPECTED
from hybridge.export.source.hub_cache import download_again
from hybridge.export.source.named import Named, named
from hybridge.export.source.reading import check_files, first_line


def read_config(checkpoint: str | Path | Named) -> Any:
    """The config of the checkpoint that ``checkpoint`` names, once it is known to be of a supported family.

    Raises what ``find_checkpoint`` does, CheckpointError where config.json is damaged, UnsupportedModelError where hybridge
    cannot run the model.
    """
    place = find_checkpoint(named(checkpoint).checkpoint)
    if not is_gguf(place):
        return config_in(place)
    with tempfile.TemporaryDirectory(prefix="hybridge-gguf-") as folder:
        write_folder(place, Path(folder), tokenizer=False)
        return config_in(Path(folder))


def config_in(folder: Path) -> Any:
    """The config in ``folder``. Raises what ``read_config`` does."""
    path = folder / "config.json"
    check_files(folder, [path.name])
    content = _read_object(path)
    model_type = content.get("model_type")
    if not isinstance(model_type, str):
        raise CheckpointError(
            f'{path} cannot be read as a transformers config: it has no model_type, such as "model_type": "qwen3". {EXPECTED}'
        )
    text = content.get("text_config")
    known = not {model_type, text.get("model_type") if isinstance(text, dict) else None}.isdisjoint(known_model_types())
    if not known and not _attends_alone(folder):
        raise _unsupported(folder, model_type, content)
    quantization_of(folder, content)
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        if not known:
            setattr(text_config(config), ATTENTION_ALONE, True)
        types = plan(text_config(config))
        _forget_quantization(config)  # its weights are dequantized as they are read, before transformers sees them
    except CheckpointError:
        raise
    except Exception as error:  # transformers' config classes raise whatever their checks ran into
        raise CheckpointError(f"{path} is not a valid {model_type!r} config: {first_line(error)}") from None
    if family_of(text_config(config)) is None:
        raise _unsupported(folder, model_type, {"layer_types": types})
    return config


def _attends_alone(folder: Path) -> bool:
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception:  # transformers' config classes raise whatever their checks ran into
        return False
    loadable = {*MODEL_FOR_CAUSAL_LM_MAPPING, *MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING}
    return type(config) in loadable and is_plain_attention(text_config(config))


def _forget_quantization(config: Any) -> None:
    for part in (config, text_config(config)):
        for name in ("quantization_config", "compression_config"):
            vars(part).pop(name, None)


def known_model_types() -> set[str]:
    """Return top-level model types that a supported text model appears under."""
    return set(FAMILIES) | {name.removesuffix("_text") for name in FAMILIES}


def _read_object(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{path} cannot be read as a transformers config: it is not JSON ({first_line(error)}); "
            f"{download_again(path.parent)}."
        ) from None
    if not isinstance(content, dict):
        raise CheckpointError(
            f"{path} cannot be read as a transformers config: it is JSON, but not an object; {download_again(path.parent)}."
        )
    return content


def _unsupported(folder: Path, model_type: str, content: dict[str, Any]) -> UnsupportedModelError:
    text = content.get("text_config")
    types = content.get("layer_types") or (text.get("layer_types") if isinstance(text, dict) else None)
    layers = f" Its layers: {summarize([str(each) for each in types])}." if isinstance(types, list) else ""
    missing = _what_is_missing(folder)
    return UnsupportedModelError(
        f"model type {model_type!r} is not supported.{layers}\n"
        + (f"{missing}\n" if missing else "")
        + f"Supported model types: {', '.join(sorted(name.removesuffix('_text') for name in FAMILIES))}."
    )


def _what_is_missing(folder: Path) -> str | None:
    """Return what hybridge would need for a model that transformers knows; None for one that transformers does not know."""
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception:  # transformers' config classes raise whatever their checks ran into
        return None
    if not {type(config), type(text_config(config))} & set(MODEL_FOR_CAUSAL_LM_MAPPING):
        return "It has no text model: transformers has no causal language model for it."
    return what_is_missing(text_config(config))
