"""The checkpoint as an oracle: its eager forward without any cache, with the artifact's roundings where it has any."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from hybridge.cache.errors import UsageError
from hybridge.cache.quantized_rows import quantize_rows
from hybridge.export.checkpoint import Checkpoint, load_checkpoint
from hybridge.export.exporter import build_cache
from hybridge.export.quantize import is_quantized, pack_weights
from hybridge.runtime.manifest import ExportOptions
from hybridge.runtime.protocols import Description, Oracle

ROUNDED = "hybridge_rounded"


def load_oracle(folder: Path, manifest: Description) -> Oracle:
    """Tokens to float32 logits [T, V]. Raises CheckpointError, and UsageError where the artifact is of another model."""
    checkpoint = load_original(folder, manifest)
    round_as(checkpoint, manifest.options)
    return uncached(checkpoint.model)


def load_original(folder: Path, manifest: Description) -> Checkpoint:
    """The checkpoint in float32, as it is. Raises what ``load_oracle`` does."""
    checkpoint = load_checkpoint(folder)
    config = checkpoint.config
    if (config.model_type, checkpoint.vocab_size) != (manifest.model_type, manifest.vocab_size):
        raise UsageError(
            f"{folder} is a {config.model_type!r} model with {checkpoint.vocab_size} tokens, but the artifact is of a "
            f"{manifest.model_type!r} model with {manifest.vocab_size}; give the checkpoint that it was exported from."
        )
    return checkpoint


def round_as(checkpoint: Checkpoint, options: ExportOptions) -> None:
    """Round weights, keys and values of the model as an export with ``options`` does."""
    if is_quantized(options):
        pack_weights(checkpoint.model, options)
    if options.kv_cache == "int8":
        _round_keys(checkpoint, options)


def uncached(model: PreTrainedModel) -> Oracle:
    """Tokens to float32 logits [T, V]: one forward over all of them, without any cache."""

    @torch.no_grad()
    def oracle(tokens: Sequence[int]) -> Tensor:
        logits: Tensor = model(torch.tensor([list(tokens)]), use_cache=False).logits[0]
        return logits.float()

    return oracle


def _round_keys(checkpoint: Checkpoint, options: ExportOptions) -> None:
    """Let the layers whose keys and values an artifact keeps in 8 bits attend over rounded ones."""
    layers = build_cache(checkpoint.config, options).cache_layers()
    for module in checkpoint.model.modules():
        index = getattr(module, "layer_idx", None)
        if index is not None:
            module.keeps_8_bits = any(part.kind == "quantized_attention" for part in layers[index].each())
    checkpoint.model.set_attn_implementation(ROUNDED)


def _attend_rounded(module: Any, query: Tensor, key: Tensor, value: Tensor, *args: Any, **options: Any) -> Any:
    """transformers' attention function: key and value [B, G, T, D] are rounded row by row, then it is SDPA."""
    if module.keeps_8_bits:
        key, value = (steps.unsqueeze(-1) * quanta for quanta, steps in map(quantize_rows, (key, value)))
    return sdpa_attention_forward(module, query, key, value, *args, **options)


AttentionInterface.register(ROUNDED, _attend_rounded)
AttentionMaskInterface.register(ROUNDED, sdpa_mask)
