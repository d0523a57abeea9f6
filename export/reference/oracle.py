"""The checkpoint as an oracle: its eager forward without any cache, with the artifact's roundings where it has any."""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from hybridge.cache.errors import UsageError
from hybridge.cache.operations.quantized_rows import quantize_rows
from hybridge.export.checkpoint.loading import Checkpoint, load_checkpoint
from hybridge.export.checks.random_program import Oracle
from hybridge.export.layers.rounded_weight import Rounder
from hybridge.export.pinned.transformers import attention_function, chosen_attention, mask_function
from hybridge.export.pte.state_cache import build_cache
from hybridge.export.quantization.quantize import is_quantized, quantize
from hybridge.export.source.named import Named
from hybridge.runtime.artifacts.options import Description, ExportOptions

ROUNDED = "hybridge_rounded"


def load_oracle(checkpoint: str | Path | Named, manifest: Description, rounder: Rounder | None = None) -> Oracle:
    """Return a function from tokens to logits [T, V]; ``rounder`` has the weights of a calibrated artifact.

    Raises CheckpointError, and UsageError if the model is another.
    """
    original = load_original(checkpoint, manifest)
    round_as(original, manifest.options, rounder)
    return uncached(original.model)


def load_original(checkpoint: str | Path | Named, manifest: Description) -> Checkpoint:
    """Load the checkpoint in float32, as it is. Raises CheckpointError, and UsageError if the model is another."""
    loaded = load_checkpoint(checkpoint)
    config = loaded.config
    if (config.model_type, loaded.vocab_size) != (manifest.model_type, manifest.vocab_size):
        raise UsageError(
            f"{loaded.folder} is a {config.model_type!r} model with {loaded.vocab_size} tokens, but the artifact is of a "
            f"{manifest.model_type!r} model with {manifest.vocab_size}; give the checkpoint that it was exported from."
        )
    return loaded


def round_as(checkpoint: Checkpoint, options: ExportOptions, rounder: Rounder | None = None) -> None:
    """Round weights, keys and values of the model as an export with ``options`` does."""
    if is_quantized(options):
        quantize(checkpoint.model, options, rounder)
    if options.kv_dtype != "float32":
        round_keys(checkpoint.model, options)


def uncached(model: PreTrainedModel) -> Oracle:
    """Return a function of tokens to float32 logits [T, V]: one forward over all of them, without any cache."""

    @torch.no_grad()
    def oracle(tokens: Sequence[int]) -> Tensor:
        logits: Tensor = model(torch.tensor([list(tokens)]), use_cache=False).logits[0]
        return logits.float()

    return oracle


def round_keys(model: PreTrainedModel, options: ExportOptions) -> None:
    """Let the layers whose keys and values an artifact rounds attend over rounded ones, else as transformers does."""
    layers = build_cache(model.config, options).cache_layers()
    for module in model.modules():
        index = getattr(module, "layer_idx", None)
        if index is not None:
            module.keys_rounded_to = next((part.rounded_to for part in layers[index].leaves() if part.rounded_to), None)
    chosen = chosen_attention(model)
    AttentionInterface.register(f"{ROUNDED}_{chosen}", functools.partial(_attend_rounded, chosen))
    AttentionMaskInterface.register(f"{ROUNDED}_{chosen}", mask_function(chosen))
    model.set_attn_implementation(f"{ROUNDED}_{chosen}")


def _attend_rounded(chosen: str, module: Any, query: Tensor, key: Tensor, value: Tensor, *args: Any, **options: Any) -> Any:
    """transformers' attention function ``chosen``, after rounding key and value [B, G, T, D] row by row."""
    if module.keys_rounded_to == torch.int8:
        key, value = (steps.unsqueeze(-1) * quanta for quanta, steps in map(quantize_rows, (key, value)))
    elif module.keys_rounded_to:
        key, value = (rows.to(module.keys_rounded_to).to(rows.dtype) for rows in (key, value))
    plain = sys.modules[type(module).__module__]  # what a model's own file calls plain attention knows its caps and sinks
    attend = attention_function(chosen, getattr(plain, "eager_attention_forward", None))
    return attend(module, query, key, value, *args, **options)
