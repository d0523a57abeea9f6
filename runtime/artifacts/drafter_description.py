"""What a reader must know of the drafter inside an artifact."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

DrafterKind = Literal["mtp", "dflash", "dflash2", "dspark", "eagle3", "gemma4_assistant"]
MOST_BLOCKS = 64
LONGEST_BLOCK = 513


@dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid", strict=True))
class DrafterDescription:
    """The drafter of an artifact.

    taps: the tapped layers whose hidden states it reads, in its order, a part of the artifact's ``tap_layers``. blocks: tokens
    of the blocks that it proposes, ascending, the last token of the text included, so one less are draft tokens. samples: it
    can draw its draft tokens, and says from which distribution.
    """

    kind: DrafterKind
    taps: tuple[int, ...]
    blocks: tuple[int, ...]
    samples: bool = False

    @property
    def methods(self) -> dict[str, int]:
        """Return the methods that propose, and how many draft tokens each gives."""
        *shorter, longest = self.blocks
        return {"draft": longest - 1} | {shorter_draft(block): block - 1 for block in shorter}

    def method_for(self, limit: int) -> str:
        """Return the method that gives the fewest draft tokens from ``limit`` on, or the most."""
        enough = [name for name, count in self.methods.items() if count >= limit]
        return min(enough, key=lambda name: self.methods[name], default="draft")


def shorter_draft(block: int) -> str:
    """Return the name of the method for a block that is not the longest."""
    return f"draft_{block}"


OF_DRAFTERS = frozenset({"hybridge_draft_blocks", "hybridge_draft_taps"})
"""Constant methods that programs with a drafter have since 2026-11-22, for harnesses that read no manifest."""


def drafter_constants(drafter: DrafterDescription, tap_layers: tuple[int, ...]) -> dict[str, list[int]]:
    """Return what the program itself says of its drafter, for a harness that reads no manifest, by constant method.

    The lengths of its blocks, and the places of its hidden states among those that are tapped.
    """
    return {"hybridge_draft_blocks": [*drafter.blocks], "hybridge_draft_taps": [tap_layers.index(tap) for tap in drafter.taps]}


def check_drafter(drafter: DrafterDescription, tap_layers: tuple[int, ...], verify_len: int) -> None:
    """Raises ValueError where an artifact with these taps and this verify length cannot have ``drafter``."""
    blocks = list(drafter.blocks)
    if (
        not 1 <= len(blocks) <= MOST_BLOCKS
        or blocks != sorted(set(blocks))
        or not 2 <= blocks[0] <= blocks[-1] <= LONGEST_BLOCK
    ):
        raise ValueError(f"the drafter's blocks {blocks[:MOST_BLOCKS]} are not different lengths in order")
    if drafter.kind != "mtp" and blocks[-1] > verify_len:
        raise ValueError(f"the drafter's blocks of {blocks[-1]} are longer than a verify takes")
    if not drafter.taps or not {*drafter.taps} <= {*tap_layers}:
        raise ValueError(f"the drafter reads hidden states that are not tapped: {list(drafter.taps)[:MOST_BLOCKS]}")
