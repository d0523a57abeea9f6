"""Saved states of hybridge 0.2: the state's buffers as safetensors, with the artifact that they belong to and a checksum.

The core writes and reads a format of its own. What a file says is held against the session before a byte of it is taken.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridge.cache.errors import StateFileError
from hybridge.runtime.files import read_regular

FORMAT, OWN = "hybridge-state-1", b"hybridge-state"
LARGEST_HEADER = 100_000_000
"""Bytes of names, texts and note; safetensors takes no more."""
NAMES = {"format", "artifact", "texts", "note", "checksum"}
"""All that the header says of a state beside its buffers."""
DTYPES: Mapping[str, np.dtype[Any]] = {
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "I64": np.dtype(np.int64),
    "I8": np.dtype(np.int8),
    "U8": np.dtype(np.uint8),
    "BOOL": np.dtype(np.bool_),
}
"""By safetensors' names."""
Buffers = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class SavedState:
    """buffers by name; tokens that they are the state of; tokens of each filled snapshot slot; what the caller noted."""

    buffers: Buffers
    tokens: list[int]
    slots: dict[int, list[int]]
    note: str = ""


def read_older(path: Path, artifact: str, expected: Buffers) -> SavedState | None:
    """Read a state of 0.2 for the artifact with that hash, whose buffers look like ``expected``; None for another format.

    Raises StateFileError where the file is missing, damaged, or of another artifact; whether its numbers make a state, the core
    says.
    """
    wanted = {name: buffer for name, buffer in expected.items() if not name.rpartition(".")[2].startswith("staged")}
    try:
        data = read_regular(path, 2 * sum(buffer.nbytes for buffer in expected.values()) + LARGEST_HEADER)
        if data.startswith(OWN):
            return None
        metadata, buffers = _safetensors(data)
    except FileNotFoundError:
        raise StateFileError(f"{path} does not exist; give a file that a session was saved to.") from None
    except OSError as error:
        raise StateFileError(f"{path} cannot be read as a saved session: {error.strerror or error}.") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StateFileError(f"{path} cannot be read as a saved session ({error}); it is damaged or not one.") from None
    if metadata.get("format") != FORMAT:
        raise StateFileError(f"{path} is not a saved session of this version ({FORMAT}); save it again.")
    if metadata.get("artifact") != artifact:
        raise StateFileError(f"{path} was saved from another artifact; load it with the one that it came from.")
    if metadata.keys() != NAMES or metadata.pop("checksum") != _checksum(metadata, buffers):
        raise StateFileError(f"{path} was damaged: its checksum does not match. There is no way to repair it.")
    layout = {name: (buffer.shape, buffer.dtype) for name, buffer in wanted.items()}
    if {name: (buffer.shape, buffer.dtype) for name, buffer in buffers.items()} != layout:
        raise StateFileError(f"{path} does not hold the state of this artifact; save it again.")
    try:
        tokens, slots = _texts(_json(metadata["texts"]))
    except ValueError as error:
        raise StateFileError(f"{path} does not say what its state is the state of ({error}); save it again.") from None
    return SavedState({name: np.ascontiguousarray(each) for name, each in buffers.items()}, tokens, slots, metadata["note"])


def _safetensors(data: bytes) -> tuple[dict[str, str], dict[str, NDArray[Any]]]:
    """Return what a file's header says of it, and its arrays, views of ``data``. Raises ValueError and the like."""
    start = 8 + int.from_bytes(data[:8], "little")
    header = _json(data[8:start].decode())
    metadata = header.pop("__metadata__")
    arrays: dict[str, NDArray[Any]] = {}
    for name, described in header.items():
        dtype, shape, (begin, end) = DTYPES[described["dtype"]], described["shape"], described["data_offsets"]
        if not all(type(each) is int and each >= 0 for each in (*shape, begin, end)):
            raise ValueError(f"{name} lies nowhere")
        part = memoryview(data)[start + begin : start + end]
        if len(part) != end - begin:
            raise ValueError(f"{name} leads out of the file")
        arrays[name] = np.frombuffer(part, dtype).reshape(shape)
    return metadata, arrays


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


def _checksum(metadata: Mapping[str, str], buffers: Buffers) -> str:
    digest = hashlib.sha256(json.dumps(dict(metadata), sort_keys=True).encode())
    for name in sorted(buffers):
        buffer = np.ascontiguousarray(buffers[name])
        digest.update(f"{name} torch.{buffer.dtype} {list(buffer.shape)}".encode())
        digest.update(buffer.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
