"""What a session refuses before anything is done."""

from __future__ import annotations

from collections.abc import Sequence

from hybridge.cache.errors import CapacityError, SnapshotError, TokenError
from hybridge.runtime.core.token_ids import Tokens, token_ids


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
