"""The limits of a program's sizes and of a model's: what is beyond them is refused before anything is allocated."""

from __future__ import annotations

from collections.abc import Mapping

from hybridge.errors import UsageError

SIZES: Mapping[str, tuple[int, int]] = {
    "max_seq_len": (1, 1 << 20),
    "prefill_chunk": (1, 4096),
    "verify_len": (1, 512),
    "snapshot_slots": (0, 1024),
    "batch_size": (1, 1 << 16),
    "group_size": (1, 1 << 16),
    "draft_len": (1, 512),
}
"""Lowest and highest value of each size."""
LONGEST_BLOCK = SIZES["draft_len"][1] + 1
"""Most tokens of a drafter's block: its draft tokens and the token before them."""
MOST_LAYERS, MOST_OF_A_SIZE, MOST_TOKENS = 1024, 1 << 20, 1 << 24
"""Largest numbers of decoder layers, of a layer's size, and of tokens in a vocabulary that a checkpoint may have."""


def check_sizes(given: object) -> None:
    """Raise UsageError for a size among the attributes of ``given`` that no program can have."""
    for name, (lowest, highest) in SIZES.items():
        if not lowest <= (value := getattr(given, name, lowest)) <= highest:
            raise UsageError(f"{name} is {value}, but must lie between {lowest} and {highest}.")
