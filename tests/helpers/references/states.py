"""What of a session's state decides what comes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hybridge.cache.operations.quantized_rows import key_rows, value_rows
from hybridge.runtime import Session
from hybridge.runtime.binding.checkpoint import Checkpoint

Arrays = dict[str, NDArray[Any]]


def seen(session: Session) -> Arrays:
    """All of a state that decides what comes: bounded buffers, and the rows that count. For programs without a drafter."""
    state = session.state()
    return {name: _filled(name, state, session) for name in state if not _is_auxiliary(name)}


def same(one: Arrays, other: Arrays) -> bool:
    """Whether they are alike bit for bit."""
    return one.keys() == other.keys() and all(one[name].tobytes() == other[name].tobytes() for name in one)


def _is_auxiliary(name: str) -> bool:
    own = name.rpartition(".")[2]
    return (
        name in ("staged", "slot_length", "operations")
        or own.startswith("staged_")
        or own.endswith("_slots")
        or "slots." in name
    )


def _filled(name: str, state: Arrays, session: Session) -> NDArray[Any]:
    """The rows of a buffer that have a row for each position, docs/artifact.md has their shapes; all of another one."""
    array, length, options = state[name], session.length, session.manifest.options
    prefix, _, own = name.rpartition(".")
    if f"{prefix}.key_scales" in state:
        return _quantized(own, array)[:length]
    if name == "rows":  # of a TextProgram
        return array[:length]
    if array.ndim == 4 and options.format == "onnx" and own in ("key", "value"):
        return array[:, :, :length]
    if own in ("keys", "values") and array.shape[1] == options.max_seq_len + max(options.prefill_chunk, options.verify_len):
        return array[:, :length]
    if own == "keys" and f"{prefix}.values" not in state and f"{prefix}.conv_state" in state:  # pools of several positions
        return array[:, : length // (state[f"{prefix}.conv_state"].shape[1] + 1)]
    return array


def _quantized(own: str, array: NDArray[Any]) -> NDArray[Any]:
    """8-bit rows, which lie in blocks, one after another."""
    buffer = torch.from_numpy(array)
    if own.endswith("_scales"):
        by_row = buffer.transpose(2, 3)[0].flatten(0, 1)
    else:
        by_row = (key_rows(buffer) if own == "keys" else value_rows(buffer))[0].flatten(0, 2)
    return np.ascontiguousarray(by_row.numpy())


def around_a_restore(session: Session) -> tuple[Checkpoint, Checkpoint]:
    """Checkpoints of an empty session: after its first tokens, and once it has gone on and come back to a later snapshot."""
    session.prefill([4, 5, 6, 7])
    first = session.checkpoint()
    session.prefill([5, 6])
    session.snapshot(0)
    session.prefill([7, 8])
    session.restore(0)
    return first, session.checkpoint()
