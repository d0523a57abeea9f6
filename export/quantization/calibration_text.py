"""Texts to calibrate on: somebody's, cut into windows, or what the model says by itself."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from transformers import GenerationConfig

from hybridge.cache.errors import UsageError
from hybridge.export.checkpoint.loading import Checkpoint
from hybridge.export.checks.texts import read_text, windows

WINDOWS, LENGTH = 32, 512
"""Texts, and tokens of each, of a file; twice as many make the error of the embedded model 2 % less."""
OWN_LENGTH = 256
"""Tokens of each text that the model makes itself, one at a time."""


def calibration_tokens(checkpoint: Checkpoint, source: str | Path) -> Tensor:
    """Return the tokens [B, T] to calibrate ``checkpoint`` on: windows of the file ``source``, for "self" what it samples.

    Raises UsageError for a file that cannot be read or is shorter than one window, and for a checkpoint without a tokenizer.
    """
    if source == "self":
        return sampled_tokens(checkpoint)
    tokenizer = checkpoint.tokenizer.tokenizer
    if tokenizer is None:
        raise UsageError(
            f"--calibrate {source} needs a tokenizer, and {checkpoint.folder} has none; --calibrate self needs none."
        )
    text = read_text(Path(source), "--calibrate")
    return torch.tensor(windows(tokenizer, text, LENGTH, WINDOWS, f"--calibrate {source}"))


@torch.no_grad()
def sampled_tokens(checkpoint: Checkpoint) -> Tensor:
    """Return tokens that the model samples at temperature 1, each text from another token; the same every time."""
    options = GenerationConfig(
        do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=OWN_LENGTH - 1, min_new_tokens=OWN_LENGTH - 1
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        first = torch.randint(0, checkpoint.vocab_size, (WINDOWS, 1))
        # One token at a time, which transformers' own caches get right for every family.
        made: Tensor = checkpoint.model.generate(first, generation_config=options, attention_mask=torch.ones_like(first))
    return made
