"""Encode pictures for LFM2-VL and LFM2.5-VL: SigLIP 2 over patches in their own aspect ratio, pixel unshuffle, two layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from hybridge.cache.operations.kernels import Kernels
from hybridge.export.model.encoders.encoder import (
    ATTEND_TO_PATCHES,
    BILINEAR,
    PatchEncoder,
    VisionFamily,
    check_filter,
    check_tower,
    default_budgets,
    normalization,
    normalized_patches,
    refused,
)
from hybridge.export.pinned.transformers import choose_attention
from hybridge.runtime.artifact.pictures import PictureDescription


class NaflexEncoder(PatchEncoder):
    """The vision tower and the projector of an LFM2-VL model over padded patches.

    Source: transformers 5.23 ``Siglip2VisionModel`` and ``Lfm2VlMultiModalProjector``, whose modules it calls.
    """

    def __init__(
        self, whole: PreTrainedModel, processor: Mapping[str, Any], description: PictureDescription, kernels: Kernels
    ) -> None:
        super().__init__(kernels, description.patch_size, *normalization(processor))
        tower, self.projector = whole.model.vision_tower, whole.model.multi_modal_projector
        self.embeddings, self.layers, self.post_layernorm = tower.embeddings, tower.encoder.layers, tower.post_layernorm
        self.square = whole.config.downsample_factor**2
        choose_attention(tower.config, ATTEND_TO_PATCHES)
        self.requires_grad_(False)

    def forward(self, pixels: Tensor, rows: Tensor, columns: Tensor, count: Tensor) -> Tensor:
        """Return the embeddings of a picture's patches; see ``PatchEncoder``."""
        length = pixels.shape[0]
        patches = self.embeddings.patch_embedding(self.normalized(pixels))
        table = self.embeddings.position_embedding.weight
        weights = (rows[:, :, None] * columns[:, None, :]).reshape(length, -1)
        hidden = (patches + torch.mm(weights, table))[None]
        seen = self.seen(count, length)
        for layer in self.layers:
            hidden = layer(hidden, seen)
        squares = self.post_layernorm(hidden).reshape(1, length // self.square, -1)
        projector = self.projector
        if projector.use_layer_norm:
            squares = projector.layer_norm(squares)
        embedded: Tensor = projector.linear_2(projector.act(projector.linear_1(squares)))
        return embedded


def naflex_inputs(config: Any, processor: Mapping[str, Any], pictures: Sequence[Tensor]) -> dict[str, Tensor]:
    """Return ``pixel_values``, ``pixel_attention_mask`` and ``spatial_shapes`` as transformers' processor has them."""
    if not pictures:
        return {}
    patch = config.vision_config.patch_size
    shapes = [(each.shape[0] // patch, each.shape[1] // patch) for each in pictures]
    longest = max(rows * columns for rows, columns in shapes)
    values, mask = torch.zeros(len(shapes), longest, 3 * patch**2), torch.zeros(len(shapes), longest, dtype=torch.int32)
    for i, (picture, (rows, columns)) in enumerate(zip(pictures, shapes, strict=True)):
        values[i, : rows * columns] = normalized_patches(picture, patch, processor)
        mask[i, : rows * columns] = 1
    return {"pixel_values": values, "pixel_attention_mask": mask, "spatial_shapes": torch.tensor(shapes)}


def _lfm2_vl(config: Any, processor: Mapping[str, Any], budgets: Sequence[int]) -> PictureDescription:
    vision = config.vision_config
    check_tower(config, "siglip2_vision_model")
    check_filter(processor, BILINEAR)
    split = bool(processor["do_image_splitting"])
    side = round(vision.num_patches**0.5)
    if side**2 != vision.num_patches or (processor["encoder_patch_size"], processor["downsample_factor"]) != (
        vision.patch_size,
        config.downsample_factor,
    ):
        raise ValueError("the processor's patches are not the model's, or its positions are no square")
    most = int(processor["max_image_tokens"])
    described = PictureDescription(
        model_type="lfm2_vl",
        placeholder=config.image_token_id,
        patch_size=vision.patch_size,
        merge=config.downsample_factor,
        position_side=side,
        budgets=tuple(budgets),
        min_tokens=int(processor["min_image_tokens"]),
        max_tokens=most,
        tile_size=int(processor["tile_size"]),
        min_tiles=int(processor["min_tiles"]) if split else 1,
        max_tiles=int(processor["max_tiles"]) if split else 1,
        tolerance=float(processor["max_pixels_tolerance"]),
        thumbnail=bool(processor["use_thumbnail"]),
        marks=bool(processor["use_image_special_tokens"]),
    )
    tile = (described.tile_size // described.unit) ** 2 if described.max_tiles > 1 else 0
    largest = max(most, tile)
    if not budgets:
        return replace(described, budgets=default_budgets(largest))
    if budgets[-1] < largest:
        why = f"this model was trained with pictures of up to {largest} tokens, so the last number must be {largest} or more."
        raise refused(budgets, why)
    return described


_LFM2_VL: Mapping[str, Any] = {
    "downsample_factor": 2,
    "do_image_splitting": True,
    "min_tiles": 2,
    "max_tiles": 10,
    "use_thumbnail": True,
    "min_image_tokens": 64,
    "max_image_tokens": 256,
    "encoder_patch_size": 16,
    "tile_size": 512,
    "max_pixels_tolerance": 2.0,
    "resample": BILINEAR,
    "use_image_special_tokens": True,
}
"""Options of transformers' ``Lfm2VlImageProcessor`` that a file may leave out."""

LFM2_VL = VisionFamily(
    describe=_lfm2_vl,
    encoder=NaflexEncoder,
    inputs=naflex_inputs,
    parts=("model.vision_tower.encoder", "model.multi_modal_projector"),
    defaults=_LFM2_VL,
)
