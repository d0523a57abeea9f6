"""Run a checkpoint eagerly: its uncached forward as an oracle, with an artifact's roundings."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from hybridge.cache.operations.quantized_rows import quantize_rows
from hybridge.errors import UsageError
from hybridge.export.check.random_program import Oracle
from hybridge.export.model.vision import VISION, read_processor
from hybridge.export.pinned.transformers import attention_function, chosen_attention, mask_function
from hybridge.export.program.build import build_cache
from hybridge.export.quantize.quantize import is_quantized, quantize, quantize_encoder
from hybridge.export.source.checkpoint import CheckpointSource, LoadedModel, load_checkpoint
from hybridge.export.weights import Rounder
from hybridge.runtime.artifact.model_info import ModelInfo
from hybridge.runtime.artifact.options import ExportOptions
from hybridge.runtime.artifact.pictures import PictureDescription

ROUNDED = "hybridge_rounded"


def load_oracle(checkpoint: CheckpointSource | str | Path, manifest: ModelInfo, rounder: Rounder | None = None) -> Oracle:
    """Load the checkpoint with the artifact's roundings, and return its uncached forward: tokens to logits [T, V].

    rounder: the weights of a calibrated artifact. Raises CheckpointError, and UsageError if it is another model.
    """
    original = load_original(checkpoint, manifest)
    round_as(original, manifest.options, rounder, manifest.pictures)
    return uncached(original.model)


def load_original(checkpoint: CheckpointSource | str | Path, manifest: ModelInfo) -> LoadedModel:
    """Load the checkpoint in float32, as it is. Raises CheckpointError, and UsageError if it is another model."""
    loaded = load_checkpoint(checkpoint, pictures=manifest.pictures is not None)
    config = loaded.config
    if (config.model_type, loaded.vocab_size) != (manifest.model_type, manifest.vocab_size):
        raise UsageError(
            f"{loaded.source.folder} is a {config.model_type!r} model with {loaded.vocab_size} tokens, but the artifact is of "
            f"a {manifest.model_type!r} model with {manifest.vocab_size}; give the checkpoint that it was exported from."
        )
    return loaded


def round_as(
    loaded: LoadedModel, options: ExportOptions, rounder: Rounder | None = None, pictures: PictureDescription | None = None
) -> None:
    """Round the model's weights, keys and values in place, as an export with ``options`` and ``pictures`` does."""
    if is_quantized(options):
        quantize(loaded.model, options, rounder)
        if loaded.whole is not None and (family := VISION.get(loaded.whole.config.model_type)):
            quantize_encoder(loaded.whole, family.parts, options, lambda text: None)
    if options.kv_dtype != "float32":
        round_keys(loaded.model, options, pictures)


def uncached(model: PreTrainedModel) -> Oracle:
    """Return a function from tokens to float32 logits [T, V]: one forward over all of them without a cache."""

    @torch.no_grad()
    def oracle(tokens: Sequence[int]) -> Tensor:
        logits: Tensor = model(torch.tensor([list(tokens)]), use_cache=False).logits[0]
        return logits.float()

    return oracle


def disturbed(model: PreTrainedModel, oracle: Oracle) -> Oracle:
    """Return the oracle of a model whose embeddings are changed in their last bits, up or down at random.

    Float32 cannot tell both models apart, so their logits differ about as much as those of two right orders of arithmetic:
    3e-07 of the largest logit as a rule, but 1e-04 if attention has no scale and its scores are in the hundreds.
    """

    def change(_: nn.Module, inputs: Any, embeddings: Tensor) -> Tensor:
        signs = torch.randint(0, 2, embeddings.shape, generator=torch.Generator().manual_seed(0)) * 2 - 1
        return embeddings * (1 + torch.finfo(embeddings.dtype).eps * signs)

    def changed(tokens: Sequence[int]) -> Tensor:
        with model.get_input_embeddings().register_forward_hook(change):
            return oracle(tokens)

    return changed


Pixels = Mapping[int, NDArray[np.uint8]]
"""Pictures uint8 [height, width, 3], as the encoder takes them, by the first of their ids in a text."""


def uncached_with_pictures(loaded: LoadedModel, pixels: Pixels) -> Oracle:
    """Return a function from a text to float32 logits [T, V]: one forward of transformers' whole model without a cache.

    Its encoder's features are put into the embeddings here, because a text may have the placeholder as a token, too, which the
    whole model's own forward takes for a row of a picture.

    pixels: of every picture whose rows are in a text.
    """
    whole = loaded.whole
    assert whole is not None, "only a multimodal model takes pictures"
    family = VISION[whole.config.model_type]
    processor = read_processor(loaded.source.folder, family)
    if whole.get_output_embeddings() is not None:  # otherwise the text model is a part of the whole
        whole.set_output_embeddings(loaded.model.get_output_embeddings())  # a tied head may have been rounded

    @torch.no_grad()
    def oracle(tokens: Sequence[int]) -> Tensor:
        pictures = [torch.from_numpy(pixels[token].copy()) for token in tokens if token in pixels]
        ids = torch.tensor([tokens])
        embeddings = whole.get_input_embeddings()(ids.clamp(min=0))
        inputs = family.inputs(whole.config, processor, pictures)
        if pictures:
            embeddings[ids < 0] = torch.cat(list(whole.get_image_features(**inputs).pooler_output))
        others = family.rows(whole, tokens, inputs) if family.rows else {}
        logits: Tensor = whole(inputs_embeds=embeddings, use_cache=False, **others).logits[0]
        return logits.float()

    return oracle


@torch.no_grad()
def picture_features(loaded: LoadedModel, pictures: Sequence[NDArray[np.uint8]]) -> list[Tensor]:
    """Return the embeddings [rows, hidden] of each picture uint8 [height, width, 3] by transformers' own encoder."""
    assert loaded.whole is not None, "only a multimodal model takes pictures"
    family = VISION[loaded.whole.config.model_type]
    processor = read_processor(loaded.source.folder, family)
    found = []
    for each in pictures:
        inputs = family.inputs(loaded.whole.config, processor, [torch.from_numpy(each)])
        found.append(torch.cat(list(loaded.whole.get_image_features(**inputs).pooler_output)).float())
    return found


def round_keys(model: PreTrainedModel, options: ExportOptions, pictures: PictureDescription | None = None) -> None:
    """Let layers attend over rounded keys and values if the artifact rounds them; others attend as before."""
    layers = build_cache(model.config, options, pictures=pictures).cache_layers()
    for module in model.modules():
        index = getattr(module, "layer_idx", None)
        if index is not None:
            module.keys_rounded_to = next((part.rounded_to for part in layers[index].leaves() if part.rounded_to), None)
    chosen = chosen_attention(model)
    AttentionInterface.register(f"{ROUNDED}_{chosen}", functools.partial(_attend_rounded, chosen))
    AttentionMaskInterface.register(f"{ROUNDED}_{chosen}", mask_function(chosen))
    model.set_attn_implementation(f"{ROUNDED}_{chosen}")


def _attend_rounded(chosen: str, module: Any, query: Tensor, key: Tensor, value: Tensor, *args: Any, **options: Any) -> Any:
    """Round key and value [B, G, T, D] row by row, then call transformers' attention function ``chosen``."""
    if module.keys_rounded_to == torch.int8:
        key, value = (steps.unsqueeze(-1) * quanta for quanta, steps in map(quantize_rows, (key, value)))
    elif module.keys_rounded_to:
        key, value = (rows.to(module.keys_rounded_to).to(rows.dtype) for rows in (key, value))
    plain = sys.modules[type(module).__module__]  # the eager attention in the model's own file handles caps and sinks
    attend = attention_function(chosen, getattr(plain, "eager_attention_forward", None))
    return attend(module, query, key, value, *args, **options)
