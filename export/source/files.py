"""Look at the files of a checkpoint's folder: are they all there, readable, and a transformers checkpoint's?

Folders and files of other formats are recognized by name, and refused with what the user can do instead.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from hybridge.errors import CheckpointError, NotACheckpointError
from hybridge.runtime.pack.gguf import HUB_PREFIX

EXPECTED = "Give a local checkpoint: a folder with config.json and *.safetensors, or a GGUF file."
ADAPTER = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model*.safetensors"
LFS_POINTER = b"version https://git-lfs.github.com/spec/v1"
HEAD_BYTES = 256
"""Bytes that are enough to recognize a git-lfs pointer."""


def check_files(folder: Path, names: Iterable[str]) -> None:
    """Check the files of ``folder`` among ``names`` that exist; missing ones are ignored.

    Raises:
        CheckpointError: a file is a git-lfs pointer, a link whose target is missing, or cannot be read, or something in
            the folder is no regular file.
    """
    check_kinds(folder)
    heads = {name: _head(folder / name) for name in sorted(names) if os.path.lexists(folder / name)}
    if pointers := [name for name, head in heads.items() if head.startswith(LFS_POINTER)]:
        sizes = [re.search(rb"^size (\d+)$", heads[name], re.MULTILINE) for name in pointers]
        megabytes = sum(int(size[1]) for size in sizes if size) / 1e6
        raise CheckpointError(
            f"{folder} was cloned without its large files: instead of {', '.join(pointers)} there "
            f"{'is a git-lfs pointer' if len(pointers) == 1 else 'are git-lfs pointers'} ({megabytes:,.1f} MB are missing). "
            f"Run 'git lfs install' and then 'git lfs pull' in that folder."
        )


def check_kinds(folder: Path) -> None:
    """Raise CheckpointError if ``folder`` holds a pipe, a socket or a device, or a link to one.

    Opening a pipe waits for somebody to write into it, and /dev/zero never ends. All of the folder is looked at, because
    libraries open files of their own choice.
    """
    for place in (folder, folder / "additional_chat_templates"):
        for path in sorted(place.iterdir()) if place.is_dir() else ():
            if path.exists() and not (path.is_file() or path.is_dir()):
                raise CheckpointError(
                    f"{path} is a pipe, a socket or a device, not a file; a checkpoint has regular files and links to them."
                )


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in ``path``, empty if there is no such file. Raises CheckpointError for anything else."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON ({first_line(error)}); {download_again(path.parent)}.") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} cannot be read: it is JSON, but not an object; {download_again(path.parent)}.")
    return content


def text_part(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the text model's fields inside of a config.json's, empty if it is no multimodal model's."""
    inside = next((config[name] for name in ("text_config", "llm_config") if name in config), None)
    return inside if isinstance(inside, dict) else {}


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or the name of its class if it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def download_again(folder: Path) -> str:
    """Return the advice to download ``folder`` again, with the command if the folder is in the hub's cache."""
    entry = next((path for path in (folder, *folder.absolute().parents) if path.name.startswith(HUB_PREFIX)), None)
    command = f" with 'hf download {entry.name.removeprefix(HUB_PREFIX).replace('--', '/')}'" if entry else ""
    return f"download it again{command}"


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(HEAD_BYTES)
    except FileNotFoundError:
        raise CheckpointError(
            f"{path} is a link to {os.readlink(path)}, which does not exist; {download_again(path.parent)}, "
            "or copy the folder that it leads to as well."
        ) from None
    except PermissionError:
        raise CheckpointError(f"no permission to read {path}; change it, or copy the checkpoint.") from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror or error}).") from None


# Files of other formats


@dataclass(frozen=True, kw_only=True)
class OtherFormat:
    """A format that is no transformers checkpoint.

    files: patterns of its files' names; name: the words for such a file in an error; advice: what the user can do, with
    the file's ``{path}`` and ``{folder}``, or a function of its path.
    """

    files: tuple[str, ...]
    name: str
    advice: str | Callable[[Path], str]


ORIGINAL = "Give the checkpoint that it was made from: a folder with config.json and *.safetensors."


def _merge(config: Path) -> str:
    base = base_model(config.parent)
    return (
        f"Merge it into its base model{f' {base}' if base else ''} first, with peft: "
        f"PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained({base or 'BASE'!r}), {str(config.parent)!r})"
        ".merge_and_unload().save_pretrained('MERGED'). Then copy the tokenizer's files to MERGED and export that."
    )


CONVERT_PICKLE = (
    "Convert it to safetensors first, where you trust it: "
    "AutoModelForCausalLM.from_pretrained({folder!r}, dtype='auto').save_pretrained('CONVERTED'). "
    "Then copy the tokenizer's files to CONVERTED and export that."
)
CONVERT_OTHER = "Give a checkpoint with *.safetensors, or convert {path.name} to them with the library that wrote it."
TRANSFORMERS_FORM = (
    f"{EXPECTED} Most publishers offer the model in that form too; transformers has scripts that convert others."
)

# The most telling first: the folder of an adapter may hold pickles too.
WEIGHTS_OF_OTHERS = (
    OtherFormat(files=(ADAPTER,), name="the config of an adapter (LoRA), not of a whole model", advice=_merge),
    OtherFormat(
        files=("model_index.json",), name="the index of a diffusers pipeline", advice="hybridge exports language models only."
    ),
    OtherFormat(files=("*.pte",), name="a program for ExecuTorch, such as 'hybridge export' writes", advice=ORIGINAL),
    OtherFormat(files=("*.gguf",), name="a GGUF file, llama.cpp's format", advice="Give the file itself: {path}"),
    OtherFormat(files=("*.onnx", "onnx/*.onnx"), name="an ONNX graph", advice=ORIGINAL),
    OtherFormat(files=("*.npz",), name="a file of MLX weights", advice=ORIGINAL),
    OtherFormat(files=("openvino_*.xml",), name="an OpenVINO graph", advice=ORIGINAL),
    OtherFormat(files=("*.tflite", "*.litertlm", "*.task"), name="a file for LiteRT", advice=ORIGINAL),
    OtherFormat(files=("*.h5", "*.msgpack"), name="a file of TensorFlow's or Flax's weights", advice=CONVERT_OTHER),
    OtherFormat(files=("*.bin", "*.pt", "*.pth", "*.ckpt"), name="a pickle, which hybridge never loads", advice=CONVERT_PICKLE),
)
"""Formats to look for in a folder without *.safetensors."""

CONFIGS_OF_OTHERS = (
    *WEIGHTS_OF_OTHERS[:2],
    OtherFormat(files=("params.json",), name="a config in Meta's or Mistral's own format", advice=TRANSFORMERS_FORM),
)
"""Formats to look for in a folder without config.json."""


def check_folder(folder: Path) -> None:
    """Raise NotACheckpointError if ``folder`` is of another format, CheckpointError if it just has no config.json."""
    if not has_weights(folder):
        _refuse(folder, WEIGHTS_OF_OTHERS)
    # A broken link counts as there: read_config says what is wrong with it.
    if (folder / "config.json").exists() or (folder / "config.json").is_symlink():
        return
    _refuse(folder, CONFIGS_OF_OTHERS)
    if inner := sorted(path.parent for path in folder.glob("*/config.json")):
        raise NotACheckpointError(
            f"{folder} has no config.json, but a folder in it has; give that:\n" + "\n".join(map(str, inner))
        )
    raise CheckpointError(f"{folder} has no config.json, so it is not a transformers checkpoint. {EXPECTED}")


def check_file(path: Path) -> None:
    """Raise NotACheckpointError for the file ``path``, naming its format if it is known."""
    if not path.is_file():
        raise NotACheckpointError(f"{path} is a pipe, a socket or a device, not a file. {EXPECTED}")
    for kind in WEIGHTS_OF_OTHERS:
        if any(fnmatch(path.name.lower(), pattern) for pattern in kind.files):
            raise _error(path, kind)
    if (path.parent / "config.json").is_file():
        raise NotACheckpointError(f"{path} is a file, not a folder. Give the folder that it is in: {path.parent.absolute()}")
    raise NotACheckpointError(f"{path} is a file, not a folder. {EXPECTED}")


def has_weights(folder: Path) -> bool:
    """Return whether ``folder`` has safetensors other than those of an adapter."""
    return any(not fnmatch(path.name, ADAPTER_WEIGHTS) for path in folder.glob("*.safetensors"))


def ignored_parts(folder: Path) -> list[str]:
    """Return a warning for each part of a checkpoint's folder that an export leaves out: an adapter beside the weights."""
    adapter = folder / ADAPTER
    if not adapter.exists():
        return []
    return [f"{adapter} is ignored: the model beside it is exported without the adapter. {_merge(adapter)}"]


def base_model(folder: Path) -> str | None:
    """Return the model that the adapter in ``folder`` is for, or None if its config does not say."""
    try:
        base = json.loads((folder / ADAPTER).read_text(encoding="utf-8"))["base_model_name_or_path"]
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        return None
    return base if isinstance(base, str) and base else None


def _refuse(folder: Path, kinds: Iterable[OtherFormat]) -> None:
    for kind in kinds:
        for pattern in kind.files:
            if found := sorted(folder.glob(pattern)):
                raise _error(found[0], kind)


def _error(path: Path, kind: OtherFormat) -> NotACheckpointError:
    advice = kind.advice.format(path=path, folder=str(path.parent)) if isinstance(kind.advice, str) else kind.advice(path)
    return NotACheckpointError(f"{path} is {kind.name}. {advice}")


def mlx_error(folder: Path) -> NotACheckpointError:
    """Return the refusal of weights that MLX wrote, which has a layout of its own for some of them."""
    return NotACheckpointError(
        f"{folder} holds weights that were converted for MLX. Give the original checkpoint, in float32, float16 or bfloat16. "
        "hybridge quantizes by itself: export the original with --quantize."
    )


# GGUF files in parts, as llama.cpp names them

PART = re.compile(r"(?P<stem>.*)-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5})(?P<end>\.gguf)", re.IGNORECASE | re.DOTALL)


def names_of_parts(name: str) -> list[str]:
    """Return the names of all parts that belong to the file ``name``, ``name`` alone if it is not named as a part is."""
    named = PART.fullmatch(name)
    if named is None or not 1 <= int(named["number"]) <= int(named["count"]):
        return [name]
    count = int(named["count"])
    return [f"{named['stem']}-{number:05d}-of-{named['count']}{named['end']}" for number in range(1, count + 1)]


def find_projectors(path: Path) -> list[Path]:
    """Return the files beside the model in ``path`` that are named as its encoder of pictures is, the most exact one first."""
    found = [each for each in path.parent.glob("*.gguf") if "mmproj" in each.name.lower() and each != path and each.is_file()]
    return sorted(found, key=lambda each: (-each.stat().st_size, each.name))
