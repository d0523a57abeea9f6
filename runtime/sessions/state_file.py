"""A session on disk: the state's buffers as safetensors, with the artifact that they belong to and a checksum.

The runtime need not compute anything to go on, and what it goes on with is the same bit for bit.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from hybridge.cache.errors import OutputError, StateFileError

FORMAT = "hybridge-state-1"


@dataclass(frozen=True)
class SavedState:
    """buffers by name; tokens that they are the state of; tokens of each filled snapshot slot; whatever the caller notes."""

    buffers: Mapping[str, Tensor]
    tokens: list[int]
    slots: dict[int, list[int]]
    note: str = ""


def write_state(path: Path, artifact: str, state: SavedState) -> None:
    """Write ``state`` of the artifact with that hash; the file appears whole or not at all. Raises OutputError."""
    texts = json.dumps({"tokens": state.tokens, "slots": list(state.slots.items())})
    metadata = {"format": FORMAT, "artifact": artifact, "texts": texts, "note": state.note}
    metadata["checksum"] = _checksum(metadata, state.buffers)
    data = safetensors.torch.save({name: buffer.contiguous() for name, buffer in state.buffers.items()}, metadata)
    try:
        _replace(path, data)
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror or error}.") from None


def read_state(path: Path, artifact: str, expected: Mapping[str, Tensor]) -> SavedState:
    """Read what ``write_state`` wrote for the artifact with that hash, whose buffers look like ``expected``.

    Raises StateFileError where the file is missing, damaged, or of another artifact.
    """
    metadata, buffers = _parse(path)
    if metadata.get("format") != FORMAT:
        raise StateFileError(f"{path} is not a saved session of this version ({FORMAT}); save it again.")
    if metadata.get("artifact") != artifact:
        raise StateFileError(f"{path} was saved from another artifact; load it with the one that it came from.")
    if metadata.pop("checksum", None) != _checksum(metadata, buffers):
        raise StateFileError(f"{path} was damaged: its checksum does not match. There is no way to repair it.")
    layout = {name: (buffer.shape, buffer.dtype) for name, buffer in expected.items()}
    if {name: (buffer.shape, buffer.dtype) for name, buffer in buffers.items()} != layout:
        raise StateFileError(f"{path} does not hold the state of this artifact; save it again.")
    texts = json.loads(metadata["texts"])
    return SavedState(buffers, texts["tokens"], dict(texts["slots"]), metadata["note"])


def _parse(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            return dict(file.metadata() or {}), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise StateFileError(f"{path} does not exist; give a file that a session was saved to.") from None
    except (OSError, safetensors.SafetensorError) as error:
        raise StateFileError(f"{path} cannot be read as a saved session ({error}); it is damaged or not one.") from None


def _checksum(metadata: Mapping[str, str], buffers: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(json.dumps(dict(metadata), sort_keys=True).encode())
    for name in sorted(buffers):
        buffer = buffers[name].contiguous()
        digest.update(f"{name} {buffer.dtype} {list(buffer.shape)}".encode())
        digest.update(buffer.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _replace(path: Path, data: bytes) -> None:
    """Through a temporary file beside it, so that what was there stays until the new file is whole."""
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(8)}")  # known before it exists, so that it is always removed
    try:
        with open(unfinished, "xb", opener=_for_the_owner) as file:
            file.write(data)
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def _for_the_owner(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
