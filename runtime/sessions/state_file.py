"""A session on disk: the state's buffers as safetensors, with the artifact that they belong to and a checksum.

The runtime need not compute anything to go on, and what it goes on with is the same bit for bit. Anybody can make a file with
the right checksum: what the file says is held against the session (``hybridge.runtime.sessions.saved_state``) before a byte of
it is taken.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from hybridge.cache.errors import OutputError, StateFileError
from hybridge.runtime.files.durable import replace_file
from hybridge.runtime.files.regular import read_regular
from hybridge.runtime.sessions.saved_state import SavedState

FORMAT = "hybridge-state-1"
LARGEST_HEADER = 100_000_000
"""Bytes of names, texts and note; safetensors takes no more."""
NAMES = {"format", "artifact", "texts", "note", "checksum"}
"""All that the header says of a state beside its buffers."""


def write_state(path: Path, artifact: str, state: SavedState) -> None:
    """Write ``state`` of the artifact with that hash; the file appears whole or not at all, and stays. Raises OutputError."""
    texts = json.dumps({"tokens": state.tokens, "slots": list(state.slots.items())})
    metadata = {"format": FORMAT, "artifact": artifact, "texts": texts, "note": state.note}
    metadata["checksum"] = _checksum(metadata, state.buffers)
    data = safetensors.torch.save({name: buffer.contiguous() for name, buffer in state.buffers.items()}, metadata)
    try:
        replace_file(path, data)
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror or error}.") from None


def read_state(path: Path, artifact: str, expected: Mapping[str, Tensor]) -> SavedState:
    """Read what ``write_state`` wrote for the artifact with that hash, whose buffers look like ``expected``.

    Raises StateFileError where the file is missing, damaged, or of another artifact; whether its numbers make a state,
    ``SavedState.check`` says.
    """
    metadata, buffers = _parse(path, sum(buffer.nbytes for buffer in expected.values()))
    if metadata.get("format") != FORMAT:
        raise StateFileError(f"{path} is not a saved session of this version ({FORMAT}); save it again.")
    if metadata.get("artifact") != artifact:
        raise StateFileError(f"{path} was saved from another artifact; load it with the one that it came from.")
    if metadata.keys() != NAMES or metadata.pop("checksum") != _checksum(metadata, buffers):
        raise StateFileError(f"{path} was damaged: its checksum does not match. There is no way to repair it.")
    layout = {name: (buffer.shape, buffer.dtype) for name, buffer in expected.items()}
    if {name: (buffer.shape, buffer.dtype) for name, buffer in buffers.items()} != layout:
        raise StateFileError(f"{path} does not hold the state of this artifact; save it again.")
    try:
        tokens, slots = _texts(_json(metadata["texts"]))
    except ValueError as error:
        raise StateFileError(f"{path} does not say what its state is the state of ({error}); save it again.") from None
    return SavedState(buffers, tokens, slots, metadata["note"])


def _parse(path: Path, state_bytes: int) -> tuple[dict[str, str], dict[str, Tensor]]:
    """What the header says, and the buffers."""
    try:
        data = read_regular(path, state_bytes + LARGEST_HEADER)
        buffers = safetensors.torch.load(data)
        metadata = _json(data[8 : 8 + int.from_bytes(data[:8], "little")].decode()).get("__metadata__", {})
    except FileNotFoundError:
        raise StateFileError(f"{path} does not exist; give a file that a session was saved to.") from None
    except OSError as error:
        raise StateFileError(f"{path} cannot be read as a saved session: {error.strerror or error}.") from None
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise StateFileError(f"{path} cannot be read as a saved session ({error}); it is damaged or not one.") from None
    return metadata, buffers


def _json(text: str) -> Any:
    """Raises ValueError, also for a name that is there twice and for what is nested too deep."""
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) != len(pairs):
        raise ValueError("it has a name twice")
    return found


def _texts(content: Any) -> tuple[list[int], dict[int, list[int]]]:
    """The tokens, and those of each slot. Raises ValueError for anything else."""
    match content:
        case {"tokens": list(tokens), "slots": list(pairs), **rest} if not rest:
            if all(isinstance(pair, list) and len(pair) == 2 and isinstance(pair[1], list) for pair in pairs):
                slots = {pair[0]: pair[1] for pair in pairs if type(pair[0]) is int}
                if len(slots) == len(pairs) and all(type(each) is int for text in (tokens, *slots.values()) for each in text):
                    return tokens, slots
    raise ValueError("these are no lists of tokens, one for each slot")


def _checksum(metadata: Mapping[str, str], buffers: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(json.dumps(dict(metadata), sort_keys=True).encode())
    for name in sorted(buffers):
        buffer = buffers[name].contiguous()
        digest.update(f"{name} {buffer.dtype} {list(buffer.shape)}".encode())
        digest.update(buffer.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
