"""The tokens that a drafter may propose, where these are not all: its target's output layer is its largest read.

Most of a large vocabulary is rare, and what is not among the draft tokens is only never proposed. Source: FR-Spec,
arXiv:2502.14856.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import torch
from torch import Tensor

from hybridge.cache.errors import UsageError
from hybridge.export.checkpoint.loading import Checkpoint

DraftVocabulary = int | Path
"""So many of the first tokens, which are the most frequent ones of most tokenizers; or a text, whose tokens they are."""

LARGEST_TEXT = 64 << 20
"""Bytes: the counts of rarer tokens say nothing that matters."""


def draft_ids(checkpoint: Checkpoint, asked: DraftVocabulary) -> Tensor:
    """Return ids int64 [n] in order, of which the tokens that end a text are always some.

    Raises UsageError where there are none or as many as there are tokens, or where the text cannot be read.
    """
    ids = {*range(asked)} if isinstance(asked, int) else _of_text(checkpoint, asked)
    if not 1 <= len(ids) < checkpoint.vocab_size:
        raise UsageError(
            f"--draft-vocab {asked} is {len(ids)} tokens, but should be some of the model's "
            f"{checkpoint.vocab_size}; leave it out for all of them."
        )
    return torch.tensor(sorted({*ids, *checkpoint.eos_ids}))


def _of_text(checkpoint: Checkpoint, path: Path) -> set[int]:
    tokenizer = checkpoint.tokenizer.tokenizer
    if tokenizer is None:
        raise UsageError(f"--draft-vocab {path} needs the model's tokenizer, and it has none; give a number of tokens.")
    try:
        with path.open("rb") as file:
            text = file.read(LARGEST_TEXT).decode("utf-8", errors="ignore")
    except OSError as error:
        raise UsageError(
            f"--draft-vocab {path} cannot be read ({error.strerror}); give a text, or a number of tokens."
        ) from None
    counts = Counter(token for line in text.splitlines(keepends=True) for token in tokenizer.encode(line).ids)
    return {token for token in counts if token < checkpoint.vocab_size}
