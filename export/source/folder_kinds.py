"""Folders and files that are taken for a transformers checkpoint but are something else, each with what to do instead."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from hybridge.cache.errors import CheckpointError, NotACheckpointError

EXPECTED = "Give a local checkpoint: a folder with config.json and *.safetensors, or a GGUF file."
GGUF = ".gguf"
ADAPTER = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model*.safetensors"


@dataclass(frozen=True, kw_only=True)
class Kind:
    """Something else than a checkpoint. files: what shows it; name: what such a file is; advice: what to do, by its path."""

    files: tuple[str, ...]
    name: str
    advice: Callable[[Path], str]


def _original(_: Path) -> str:
    return "Give the checkpoint that it was made from: a folder with config.json and *.safetensors."


def _itself(path: Path) -> str:
    return f"Give the file itself: {path}"


def _language_models_only(_: Path) -> str:
    return "hybridge exports language models only."


def _merge(config: Path) -> str:
    base = base_model(config.parent)
    return (
        f"Merge it into its base model{f' {base}' if base else ''} first, with peft: "
        f"PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained({base or 'BASE'!r}), {str(config.parent)!r})"
        ".merge_and_unload().save_pretrained('MERGED'). Then copy the tokenizer's files to MERGED and export that."
    )


def _convert_pickle(path: Path) -> str:
    return (
        "Convert it to safetensors first, where you trust it: "
        f"AutoModelForCausalLM.from_pretrained({str(path.parent)!r}, dtype='auto').save_pretrained('CONVERTED'). "
        "Then copy the tokenizer's files to CONVERTED and export that."
    )


def _convert_other(path: Path) -> str:
    return f"Give a checkpoint with *.safetensors, or convert {path.name} to them with the library that wrote it."


def _transformers_form(path: Path) -> str:
    return f"{EXPECTED} Most publishers offer the model in that form too; transformers has scripts that convert others."


# In the order of what says most: an adapter's folder may hold pickles too.
WEIGHTS_OF_OTHERS = (
    Kind(files=(ADAPTER,), name="the config of an adapter (LoRA), not of a whole model", advice=_merge),
    Kind(files=("model_index.json",), name="the index of a diffusers pipeline", advice=_language_models_only),
    Kind(files=("*.pte",), name="a program for ExecuTorch, such as 'hybridge export' writes", advice=_original),
    Kind(files=("*.gguf",), name="a GGUF file, llama.cpp's format", advice=_itself),
    Kind(files=("*.onnx", "onnx/*.onnx"), name="an ONNX graph", advice=_original),
    Kind(files=("*.npz",), name="a file of MLX weights", advice=_original),
    Kind(files=("openvino_*.xml",), name="an OpenVINO graph", advice=_original),
    Kind(files=("*.tflite", "*.litertlm", "*.task"), name="a file for LiteRT", advice=_original),
    Kind(files=("*.h5", "*.msgpack"), name="a file of TensorFlow's or Flax's weights", advice=_convert_other),
    Kind(files=("*.bin", "*.pt", "*.pth", "*.ckpt"), name="a pickle, which hybridge never loads", advice=_convert_pickle),
)
"""What may lie in a folder without *.safetensors."""

CONFIGS_OF_OTHERS = (
    *WEIGHTS_OF_OTHERS[:2],
    Kind(files=("params.json",), name="a config in Meta's or Mistral's own format", advice=_transformers_form),
)
"""What may lie in a folder without config.json."""


def check_folder(folder: Path) -> None:
    """Raises NotACheckpointError where ``folder`` is of another kind, CheckpointError where it has no config.json."""
    if not has_weights(folder):
        _refuse(folder, WEIGHTS_OF_OTHERS)
    # A broken link is there too; what is wrong with it is said where it is read.
    if (folder / "config.json").exists() or (folder / "config.json").is_symlink():
        return
    _refuse(folder, CONFIGS_OF_OTHERS)
    if inner := sorted(path.parent for path in folder.glob("*/config.json")):
        raise NotACheckpointError(f"{folder} has no config.json, but a folder in it has; give that:\n" + _lines(inner))
    raise CheckpointError(f"{folder} has no config.json, so it is not a transformers checkpoint. {EXPECTED}")


def check_file(path: Path) -> None:
    """Raises NotACheckpointError for ``path``, which is a file, saying of which kind."""
    for kind in WEIGHTS_OF_OTHERS:
        if any(fnmatch(path.name.lower(), pattern) for pattern in kind.files):
            raise _error(path, kind)
    if (path.parent / "config.json").is_file():
        raise NotACheckpointError(f"{path} is a file, not a folder. Give the folder that it is in: {path.parent.absolute()}")
    raise NotACheckpointError(f"{path} is a file, not a folder. {EXPECTED}")


def has_weights(folder: Path) -> bool:
    """Whether there are safetensors, other than those of an adapter."""
    return any(not fnmatch(path.name, ADAPTER_WEIGHTS) for path in folder.glob("*.safetensors"))


def ignored_parts(folder: Path) -> list[str]:
    """A sentence for each thing in a checkpoint's folder that an export leaves out, though it would change the text."""
    adapter = folder / ADAPTER
    if not adapter.exists():
        return []
    return [f"{adapter} is ignored: the model beside it is exported without the adapter. {_merge(adapter)}"]


def base_model(folder: Path) -> str | None:
    """The model that the adapter in ``folder`` is for; None where its config does not say."""
    try:
        base = json.loads((folder / ADAPTER).read_text(encoding="utf-8"))["base_model_name_or_path"]
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        return None
    return base if isinstance(base, str) and base else None


def _refuse(folder: Path, kinds: Iterable[Kind]) -> None:
    for kind in kinds:
        for pattern in kind.files:
            if found := sorted(folder.glob(pattern)):
                raise _error(found[0], kind)


def _error(path: Path, kind: Kind) -> NotACheckpointError:
    return NotACheckpointError(f"{path} is {kind.name}. {kind.advice(path)}")


def _lines(paths: Iterable[Path]) -> str:
    return "\n".join(map(str, paths))


# Weights that MLX wrote, which lays some of them out in its own way: refused, with where others come from.


ORIGINAL = (
    "Give the original checkpoint, in float32, float16 or bfloat16. "
    "hybridge quantizes by itself: export the original with --quantize."
)


def mlx_error(folder: Path) -> NotACheckpointError:
    """Return what to say of a folder with such weights."""
    return NotACheckpointError(f"{folder} holds weights that were converted for MLX. {ORIGINAL}")
