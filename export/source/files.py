"""Read the small files beside a checkpoint's weights: whether they are there at all, and are themselves."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from hybridge.cache.errors import CheckpointError, NotACheckpointError

LFS_POINTER = b"version https://git-lfs.github.com/spec/v1"


def check_files(folder: Path, names: Iterable[str]) -> None:
    """Look at the beginning of those files of ``folder`` that are there.

    Raises CheckpointError for git-lfs pointers, links that lead nowhere, and what there is no permission to read.
    """
    heads = {name: _head(folder / name) for name in sorted(names) if os.path.lexists(folder / name)}
    if pointers := [name for name, head in heads.items() if head.startswith(LFS_POINTER)]:
        sizes = [re.search(rb"^size (\d+)$", heads[name], re.MULTILINE) for name in pointers]
        megabytes = sum(int(size[1]) for size in sizes if size) / 1e6
        raise CheckpointError(
            f"{folder} was cloned without its large files: instead of {', '.join(pointers)} there "
            f"{'is a git-lfs pointer' if len(pointers) == 1 else 'are git-lfs pointers'} ({megabytes:,.1f} MB are missing). "
            f"Run 'git lfs install' and then 'git lfs pull' in that folder."
        )


def first_line(error: Exception) -> str:
    """Return the first line of what a library says, or the name of its error."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _head(path: Path) -> bytes:
    """The first bytes of a file: enough for a pointer."""
    try:
        with path.open("rb") as file:
            return file.read(256)
    except FileNotFoundError:
        raise CheckpointError(
            f"{path} is a link to {os.readlink(path)}, which does not exist; {download_again(path.parent)}, "
            "or copy the folder that it leads to as well."
        ) from None
    except PermissionError:
        raise CheckpointError(f"no permission to read {path}; change it, or copy the checkpoint.") from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror or error}).") from None


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in ``path``; an empty one where there is no such file. Raises CheckpointError for anything else."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON ({error}); get the file again.") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds no JSON object, but should hold names with values; get the file again.")
    return content


# Models in the local cache of the Hugging Face hub: ``models--ORG--NAME/snapshots/HASH`` holds links to ``blobs``.


PREFIX = "models--"
MAIN = "main"
NAME = r"[A-Za-z0-9][\w.-]*"
ID = re.compile(
    rf"(?:https?:/+[^/]+/)?(?P<id>{NAME}/{NAME})"
    rf"(?:/(?P<file>(?:{NAME}/)*{NAME}\.gguf)|(?:/tree/(?P<tree>[\w.-]+))?/?)(?:@(?P<revision>[\w./-]+))?"
)


@dataclass(frozen=True, kw_only=True)
class HubModel:
    """A model on a hub. file: one of its files that is wanted alone; revision: a branch, tag or commit."""

    id: str
    file: str | None
    revision: str


def hub_cache() -> Path:
    """The cache's folder, by the environment variables that the hub's own tools read."""
    user = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or f"{user}/huggingface"
    given = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    return Path(os.path.expandvars(given or f"{home}/hub")).expanduser()


def hub_model(named: str) -> HubModel | None:
    """The model on a hub that ``named`` may be, by its id or its web address; else None.

    ``ORG/NAME``, with ``@REVISION`` behind it or a file of it, ``ORG/NAME/FILE.gguf``.
    """
    found = ID.fullmatch(named)
    if found is None:
        return None
    return HubModel(id=found["id"], file=found["file"], revision=found["revision"] or found["tree"] or MAIN)


def cached_entry(named: str) -> Path | None:
    """The cache's folder of the model ``named``, where it has been downloaded."""
    model = hub_model(named)
    entry = hub_cache() / f"{PREFIX}{(model.id if model else named).replace('/', '--')}"
    return entry if is_entry(entry) else None


def cached_revision(entry: Path, revision: str) -> Path | None:
    """The snapshot of a revision, a branch or tag that was downloaded under that name or a commit; None where there is none."""
    ref = entry / "refs" / revision
    commit = ref.read_text(encoding="utf-8", errors="replace").strip() if ref.is_file() else revision
    found = entry / "snapshots" / Path(commit).name
    return found if found.is_dir() else None


def origin_of(path: Path) -> str | None:
    """``ORG/NAME@COMMIT`` where ``path`` is a snapshot of the hub's cache, or a file in one; else None."""
    for place in (path.absolute(), *path.absolute().parents):
        if place.parent.name == "snapshots" and place.parent.parent.name.startswith(PREFIX):
            return f"{place.parent.parent.name.removeprefix(PREFIX).replace('--', '/', 1)}@{place.name}"
    return None


def is_entry(folder: Path) -> bool:
    """Whether ``folder`` is one of the cache's, with snapshots below it."""
    return (folder / "snapshots").is_dir() and not (folder / "config.json").exists()


def snapshot_of(entry: Path) -> Path:
    """The snapshot that ``refs/main`` names, or the only one.

    Raises CheckpointError where there is none, NotACheckpointError where there are several to choose from.
    """
    snapshots = sorted(path for path in (entry / "snapshots").iterdir() if path.is_dir())
    ref = entry / "refs" / "main"
    named = ref.read_text(encoding="utf-8", errors="replace").strip() if ref.is_file() else None
    chosen = [path for path in snapshots if path.name == named] or snapshots
    if not chosen:
        raise CheckpointError(f"{entry} has no snapshot: {download_again(entry)}.")
    if len(chosen) > 1:
        raise NotACheckpointError(
            f"{entry} has {len(chosen)} snapshots, and refs/main names none of them. Give one:\n" + "\n".join(map(str, chosen))
        )
    return chosen[0]


def download_again(folder: Path) -> str:
    """How to get what is missing in ``folder``, by the model's id where the folder is one of the hub's cache."""
    entry = next((path for path in (folder, *folder.absolute().parents) if path.name.startswith(PREFIX)), None)
    command = f" with 'hf download {entry.name.removeprefix(PREFIX).replace('--', '/')}'" if entry else ""
    return f"download it again{command}"


# Folders and files that are taken for a transformers checkpoint but are something else, each with what to do instead.


EXPECTED = "Give a local checkpoint: a folder with config.json and *.safetensors, or a GGUF file."
GGUF = ".gguf"
ADAPTER = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model*.safetensors"


@dataclass(frozen=True, kw_only=True)
class OtherFormat:
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
    OtherFormat(files=(ADAPTER,), name="the config of an adapter (LoRA), not of a whole model", advice=_merge),
    OtherFormat(files=("model_index.json",), name="the index of a diffusers pipeline", advice=_language_models_only),
    OtherFormat(files=("*.pte",), name="a program for ExecuTorch, such as 'hybridge export' writes", advice=_original),
    OtherFormat(files=("*.gguf",), name="a GGUF file, llama.cpp's format", advice=_itself),
    OtherFormat(files=("*.onnx", "onnx/*.onnx"), name="an ONNX graph", advice=_original),
    OtherFormat(files=("*.npz",), name="a file of MLX weights", advice=_original),
    OtherFormat(files=("openvino_*.xml",), name="an OpenVINO graph", advice=_original),
    OtherFormat(files=("*.tflite", "*.litertlm", "*.task"), name="a file for LiteRT", advice=_original),
    OtherFormat(files=("*.h5", "*.msgpack"), name="a file of TensorFlow's or Flax's weights", advice=_convert_other),
    OtherFormat(
        files=("*.bin", "*.pt", "*.pth", "*.ckpt"), name="a pickle, which hybridge never loads", advice=_convert_pickle
    ),
)
"""What may lie in a folder without *.safetensors."""

CONFIGS_OF_OTHERS = (
    *WEIGHTS_OF_OTHERS[:2],
    OtherFormat(files=("params.json",), name="a config in Meta's or Mistral's own format", advice=_transformers_form),
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


def _refuse(folder: Path, kinds: Iterable[OtherFormat]) -> None:
    for kind in kinds:
        for pattern in kind.files:
            if found := sorted(folder.glob(pattern)):
                raise _error(found[0], kind)


def _error(path: Path, kind: OtherFormat) -> NotACheckpointError:
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
