"""Token ids as callers give them, and what a session refuses before anything is done."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any, SupportsIndex

from hybridge.cache.errors import CapacityError, SnapshotError, TokenError

Tokens = Iterable[SupportsIndex]
"""A sequence, or an array or tensor [n] of a whole type."""


def token_ids(tokens: Tokens) -> list[int]:
    """Return the ids of a sequence, or of an array or tensor [n] of a whole type. Raises TokenError for anything else."""
    dimensions: int = getattr(tokens, "ndim", 1)
    if dimensions != 1:
        raise TokenError(f"tokens are of shape {list(getattr(tokens, 'shape', ()))}; give them in one of shape [n].")
    tokens = getattr(tokens, "tolist", lambda: tokens)()
    if not isinstance(tokens, Iterable):
        raise TokenError(f"tokens are {_shown(tokens)}; give a list of token ids.")
    return [token_id(token) for token in tokens]


def token_id(token: Any) -> int:
    """Return a whole number as int, numpy's and torch's too. Raises TokenError for a float, a truth, a text, a list."""
    try:
        if not isinstance(token, bool) and not getattr(token, "ndim", 0):
            return operator.index(token)
    except TypeError:
        pass
    raise TokenError(f"{_shown(token)} is no token id; give whole numbers.")


def fitting(tokens: Tokens, vocab_size: int, length: int, max_seq_len: int) -> list[int]:
    """Return tokens that fit behind ``length`` others. Raises TokenError for none and unknown ones, CapacityError."""
    ids = token_ids(tokens)
    if not ids:
        raise TokenError("got no tokens; give at least one.")
    if wrong := [token for token in ids if not 0 <= token < vocab_size]:
        raise TokenError(f"token id {wrong[0]} is outside the vocabulary, 0 to {vocab_size - 1}.")
    if length + len(ids) > max_seq_len:
        raise CapacityError(
            f"{len(ids)} tokens do not fit: {length} of max_seq_len = {max_seq_len} are used. "
            "Reset the session, or export with a larger --max-seq-len."
        )
    return ids


def check_block(ids: Sequence[int], verify_len: int) -> None:
    """Raises TokenError for more tokens than a verify takes."""
    if len(ids) > verify_len:
        raise TokenError(f"verify takes at most {verify_len} tokens, got {len(ids)}; export with a larger --verify-len.")


def check_slot(slot: int, slots: int) -> None:
    """Raises SnapshotError for a slot that does not exist."""
    if not slots:
        raise SnapshotError("this artifact has no snapshot slots; export with --snapshot-slots.")
    if not isinstance(slot, int) or not 0 <= slot < slots:
        raise SnapshotError(f"slot {slot!r} does not exist; this artifact has slots 0 to {slots - 1}.")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
