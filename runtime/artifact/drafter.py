"""The drafter of an artifact, as its manifest describes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from hybridge.limits import LONGEST_BLOCK, MOST_TOKENS
from hybridge.runtime.artifact.options import STRICT

DrafterKind = Literal["mtp", "dflash", "dflash2", "dspark", "eagle3", "gemma4_assistant"]
VocabularySource = Literal["first", "self", "text"]
MOST_BLOCKS = 64


@dataclass(frozen=True, kw_only=True)
class VocabularyDescription:
    """The tokens that a drafter may propose, if they are not all.

    Attributes:
        tokens: their number.
        source: the first tokens, those of texts that the model sampled, or those of a file.
        coverage: share of the tokens of held-out texts that are among them; None if there were none.
    """

    tokens: int
    source: VocabularySource
    coverage: float | None = None

    __pydantic_config__: ClassVar[Any] = STRICT

    def __str__(self) -> str:
        """Return a description that continues "it proposes"."""
        chosen = {"first": "the first ones", "self": "those that the model says", "text": "those of a text"}[self.source]
        share = "" if self.coverage is None else f", {self.coverage:.1%} of texts that they were not chosen by"
        return f"{self.tokens} tokens ({chosen}{share})"


@dataclass(frozen=True, kw_only=True)
class DrafterDescription:
    """The drafter of an artifact.

    Attributes:
        kind: how it proposes.
        taps: the layers whose hidden states it reads, in its order; all are among the artifact's ``tap_layers``.
        blocks: lengths of the blocks that it proposes, ascending. A block includes the text's last token, so it has one draft
            token less.
        samples: it can draw its draft tokens, by the noise of their positions.
        vocabulary: the tokens that it may propose; None for all, or for those of an output layer of its own.
    """

    kind: DrafterKind
    taps: tuple[int, ...]
    blocks: tuple[int, ...]
    samples: bool = False
    vocabulary: VocabularyDescription | None = None

    __pydantic_config__: ClassVar[Any] = STRICT

    @property
    def methods(self) -> dict[str, int]:
        """Return the methods that propose, with the number of draft tokens that each gives."""
        *shorter, longest = self.blocks
        return {"draft": longest - 1} | {f"draft_{block}": block - 1 for block in shorter}


def drafter_constants(drafter: DrafterDescription, tap_layers: tuple[int, ...]) -> dict[str, list[int]]:
    """Return the constant methods that describe a drafter, for a harness that reads no manifest.

    They are the lengths of its blocks, and the places of its hidden states among those that are tapped.
    """
    return {"hybridge_draft_blocks": [*drafter.blocks], "hybridge_draft_taps": [tap_layers.index(tap) for tap in drafter.taps]}


def check_drafter(drafter: DrafterDescription, tap_layers: tuple[int, ...], verify_len: int) -> None:
    """Raise ValueError if an artifact with these taps and this verify length cannot have ``drafter``."""
    blocks = list(drafter.blocks)
    in_order = 1 <= len(blocks) <= MOST_BLOCKS and blocks == sorted(set(blocks))
    if not in_order or not 2 <= blocks[0] <= blocks[-1] <= LONGEST_BLOCK:
        raise ValueError(f"the drafter's blocks {blocks[:MOST_BLOCKS]} are not different lengths in order")
    if drafter.kind != "mtp" and blocks[-1] > verify_len:
        raise ValueError(f"the drafter's blocks of {blocks[-1]} are longer than a verify takes")
    if not drafter.taps or not {*drafter.taps} <= {*tap_layers}:
        raise ValueError(f"the drafter reads hidden states that are not tapped: {list(drafter.taps)[:MOST_BLOCKS]}")
    if (few := drafter.vocabulary) and not (1 <= few.tokens <= MOST_TOKENS and 0.0 <= (few.coverage or 0.0) <= 1.0):
        raise ValueError(f"the drafter's vocabulary of {few.tokens} tokens covers {few.coverage} of a text")
