"""Find the safetensors that hold a checkpoint's weights, check that all are there, readable and read, and open them."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import safetensors
from torch import nn

from hybridge.errors import CheckpointError
from hybridge.export.source.files import ADAPTER, ADAPTER_WEIGHTS, check_files, download_again, first_line, mlx_error
from hybridge.export.source.quantization import LazyTensor, Quantization, dequantized

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
CONFIGS = ("config.json", "generation_config.json")
SHARD = re.compile(r"(?P<stem>.+)-(?P<number>[0-9]{1,6})-of-(?P<total>[0-9]{1,6})\.safetensors")
BESIDE = (ADAPTER_WEIGHTS, "mtp*.safetensors", "consolidated*.safetensors")
"""Safetensors that are not the weights under transformers' names."""
NEED_SCALES = ("F8_E4M3", "F8_E5M2", "I8", "U8", "I32")
"""Types of weights that mean nothing without a scale."""


@contextmanager
def loadable(folder: Path) -> Iterator[Path]:
    """Yield a folder in which transformers finds the weights and no adapter: ``folder`` itself, or one of links to its files.

    Raises:
        CheckpointError: weights are missing, damaged or ambiguous.
        NotACheckpointError: MLX wrote the weights.
    """
    check_files(folder, [path.name for path in folder.glob("*.safetensors")])
    files = weight_files(folder)
    names = {path: tensor_names(path) for path in files}
    known = (folder / WEIGHTS).is_file() or _indexed(folder / INDEX) == files
    if known and not (folder / ADAPTER).exists():
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="hybridge-links-") as place:
        links = Path(place)
        for file in (*files, *(folder / config for config in CONFIGS if (folder / config).is_file())):
            (links / file.name).symlink_to(file.absolute())
        index = {"metadata": {}, "weight_map": {name: path.name for path, each in names.items() for name in each}}
        (links / INDEX).write_text(json.dumps(index), encoding="utf-8")
        yield links


def weight_files(folder: Path) -> list[Path]:
    """Return the files of the weights: ``model.safetensors``, an index's shards, shards without an index, or a single file.

    Raises CheckpointError if one is missing, or if there are several and nothing says which belong together.
    """
    named = _indexed(folder / INDEX)
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if named:
        return _with_left_out(folder, named)
    others = [path for path in sorted(folder.glob("*.safetensors")) if not any(fnmatch(path.name, each) for each in BESIDE)]
    if shards := [path for path in others if SHARD.fullmatch(path.name)]:
        return _shards(folder, shards)
    if not others:
        raise CheckpointError(
            f"{folder} has no *.safetensors with the weights; the checkpoint is incomplete: {download_again(folder)}."
        )
    if len(others) > 1:
        raise CheckpointError(
            f"{folder} has no {WEIGHTS} and no {INDEX}, and which of its {len(others)} other files hold the weights is not "
            f"clear: {_listed(others)}. Rename the one with the weights to {WEIGHTS}, or add the index."
        )
    return others


def _indexed(path: Path) -> list[Path]:
    """Return the files that an index of shards names, none without an index.

    An index may only name safetensors beside it, because transformers would load a pickle that it names.
    """
    if not path.exists():
        return []
    try:
        names = set(json.loads(path.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path} cannot be read as an index of shards ({first_line(error)}).") from None
    for name in names:
        if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
            raise CheckpointError(f"{path} names {name!r}, but shards are *.safetensors in the same folder.")
    if not names:
        raise CheckpointError(f"{path} names no shards.")
    files = [path.parent / name for name in sorted(names)]
    _check_complete(path.parent, files, f"which {path.name} names")
    return files


def _with_left_out(folder: Path, named: list[Path]) -> list[Path]:
    """Add the shards of the same set that an index leaves out but that lie beside those that it names."""
    sets = {(each["stem"], each["total"]) for each in map(SHARD.fullmatch, (path.name for path in named)) if each}
    beside = [
        path
        for path in folder.glob("*.safetensors")
        if (each := SHARD.fullmatch(path.name)) and each.group("stem", "total") in sets
    ]
    return sorted({*named, *beside})


def _shards(folder: Path, found: list[Path]) -> list[Path]:
    """Return all files of the one set that shards without an index belong to."""
    sets = {
        (each["stem"], len(each["number"]), each["total"]) for each in map(SHARD.fullmatch, (p.name for p in found)) if each
    }
    if len(sets) > 1:
        raise CheckpointError(
            f"{folder} has shards of {len(sets)} sets of weights and no {INDEX}: {_listed(found)}. Remove those of all but one."
        )
    ((stem, width, total),) = sets
    files = [folder / f"{stem}-{number:0{width}}-of-{total}.safetensors" for number in range(1, int(total) + 1)]
    _check_complete(folder, files, "which their names ask for")
    return files


def _check_complete(folder: Path, files: list[Path], why: str) -> None:
    if missing := [path for path in files if not path.is_file()]:
        raise CheckpointError(
            f"{folder} lacks {_listed(missing)}, {why} ({len(missing)} of {len(files)} shards); "
            f"the checkpoint is incomplete: {download_again(folder)}."
        )


def tensor_names(path: Path) -> list[str]:
    """Return the names of a file's tensors. Raises CheckpointError if it is damaged, NotACheckpointError if MLX wrote it."""
    with ExitStack() as opened:
        file = _open(path, opened)
        if (file.metadata() or {}).get("format") == "mlx":
            raise mlx_error(path.parent)
        return list(file.keys())


def _open(path: Path, opened: ExitStack) -> Any:
    """Open a file of safetensors until ``opened`` closes. Raises CheckpointError if it is damaged."""
    try:
        return opened.enter_context(safetensors.safe_open(path, framework="pt"))
    except (OSError, safetensors.SafetensorError) as error:
        raise CheckpointError(
            f"the weights in {path.parent} cannot be read: {path.name} is damaged or only a part of it is there "
            f"({first_line(error)}); {download_again(path.parent)}."
        ) from None


def _listed(paths: Iterable[Path]) -> str:
    """Return the first names, and the number of the others."""
    names = [path.name for path in paths]
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


@dataclass(frozen=True, kw_only=True)
class StoredTensors:
    """The tensors in a checkpoint's safetensors, none read yet.

    metadata: of all files together; types: safetensors' names of the tensors' types.
    """

    tensors: dict[str, LazyTensor]
    metadata: dict[str, str]
    types: dict[str, str]

    def dequantized(self, quantization: Quantization) -> dict[str, LazyTensor]:
        """Return the tensors of the unquantized checkpoint. Raises CheckpointError if the scales of one are missing."""
        found = dequantized(self.tensors, replace(quantization, metadata=self.metadata))
        left = [name for name, each in found.items() if self.tensors.get(name) is each and self.types[name] in NEED_SCALES]
        if left:
            raise CheckpointError(
                f"{left[0]} is stored as {self.types[left[0]]}, without what {quantization.method.name} scales it by "
                f"({len(left)} in all); the checkpoint is incomplete."
            )
        return found


@contextmanager
def stored_tensors(folder: Path, files: Iterable[Path] | None = None) -> Iterator[StoredTensors]:
    """Yield the tensors of the checkpoint in ``folder`` while its files are open.

    files: those to open, instead of the ones with the model's own weights. Raises CheckpointError if files are missing,
    damaged or ambiguous.
    """
    check_files(folder, [path.name for path in folder.glob("*.safetensors")])
    tensors: dict[str, LazyTensor] = {}
    metadata: dict[str, str] = {}
    types: dict[str, str] = {}
    with ExitStack() as opened:
        for path in weight_files(folder) if files is None else files:
            file = _open(path, opened)
            metadata |= file.metadata() or {}
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118  not a dict
            tensors |= slices
            types |= {name: each.get_dtype() for name, each in slices.items()}
        yield StoredTensors(tensors=tensors, metadata=metadata, types=types)


# Unused tensors

HARMLESS = (
    *("*.rotary_emb.inv_freq", "*.rotary_emb.cos_cached", "*.rotary_emb.sin_cached", "*.masked_bias", "*.position_ids"),
    *("*.input_scale", "*.activation_scale", "*.k_scale", "*.v_scale", "*.q_scale", "*.num_batches_tracked"),
)
"""Tensors that change no number: tables that the model computes, and scales of activations and caches, which stay float32."""


def unread_tensors(model: nn.Module, names: Iterable[str], is_zero: Callable[[str], bool]) -> list[str]:
    """Return those of ``names`` that lie in a layer of the model, or beside a weight of it, and may change what it computes.

    Others are of parts that are left out, such as layers of multi-token prediction. A bias of zeros changes nothing;
    AutoGPTQ writes one for each weight.
    """
    modules = dict(model.named_modules())

    def is_inside(name: str) -> bool:
        parts = name.split(".")
        if any(part.isdecimal() and ".".join(parts[: i + 1]) in modules for i, part in enumerate(parts[:-1])):
            return True
        beside = modules.get(".".join(parts[:-1]))
        return beside is not None and next(beside.parameters(recurse=False), None) is not None

    return sorted(
        name
        for name in names
        if is_inside(name)
        and not any(fnmatch(name, pattern) for pattern in HARMLESS)
        and not (name.endswith(".bias") and is_zero(name))
    )
