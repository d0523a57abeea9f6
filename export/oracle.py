"""The checkpoint as an oracle: its eager forward without any cache."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel

from hybridge.cache.errors import UsageError
from hybridge.export.checkpoint import load_checkpoint
from hybridge.export.quantize import is_quantized, pack_weights
from hybridge.runtime.protocols import Description
from hybridge.runtime.validation import Oracle


def load_oracle(folder: Path, manifest: Description) -> Oracle:
    """Tokens to float32 logits [T, V]. Raises CheckpointError, and UsageError where the artifact is of another model."""
    checkpoint = load_checkpoint(folder)
    config = checkpoint.config
    if (config.model_type, checkpoint.vocab_size) != (manifest.model_type, manifest.vocab_size):
        raise UsageError(
            f"{folder} is a {config.model_type!r} model with {checkpoint.vocab_size} tokens, but the artifact is of a "
            f"{manifest.model_type!r} model with {manifest.vocab_size}; give the checkpoint that it was exported from."
        )

    if is_quantized(manifest.options):
        pack_weights(checkpoint.model, manifest.options)
    return uncached(checkpoint.model)


def uncached(model: PreTrainedModel) -> Oracle:
    """Tokens to float32 logits [T, V]: one forward over all of them, without any cache."""

    @torch.no_grad()
    def oracle(tokens: Sequence[int]) -> Tensor:
        logits: Tensor = model(torch.tensor([list(tokens)]), use_cache=False).logits[0]
        return logits.float()

    return oracle
